"""`%%tally` runs a cell on a simulated GPU, `%tally` a command: after `%load_ext torchtally`.

Works with IPython 7.34 (Colab's) and later. What the magics return, the notebook shows.
"""

import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from torchtally.cli.arguments import Parser
from torchtally.cli.chip_names import gpu_or_default
from torchtally.cli.declared import add_options, asked
from torchtally.cli.destination import check_outputs, place_of
from torchtally.cli.run import limit_of
from torchtally.cli.run_options import STEPS
from torchtally.errors import LimitError, ScriptError, TallyError, UsageError
from torchtally.gates import check, parse_limits
from torchtally.integrations.notebook.commands import parse, tally, words_of
from torchtally.ledger import Ledger, account
from torchtally.options import CHIP, Form, output, own
from torchtally.options.simulation import SimulationOptions, simulation_settings
from torchtally.progress import CLEAR_LINE
from torchtally.report.gates import sentence
from torchtally.report.run_progress import RunProgress
from torchtally.runs.cell import run_cell
from torchtally.runs.function import EndedRun, target_of
from torchtally.runs.request import RunRequest
from torchtally.timing.prediction import Prediction
from torchtally.timing.targets import known_roofline
from torchtally.tracer import tracebacks
from torchtally.tracer.notebook import code_of
from torchtally.tracer.session import Recording, world_of
from torchtally.tracer.texts import cell_names

Shell = Any
"""IPython's `InteractiveShell`, which has no types of its own in older versions."""

EPILOG = """\
The cell is run as `tally run` runs a script, and stopped after two training steps. It sees the
names of the notebook, and what it makes is there afterwards: tensors on "cuda" without data, for
the next %%tally cell. What existed before is as it was, and no file is changed.

examples:
  %%tally --gpu H100-SXM
  %%tally --gpu RTX-4090 --steps all --name ledger
  %%tally --gpu H100-SXM --assert "peak < 24GiB" -o run.tally
"""


def load(shell: Shell) -> None:
    """Add the magics: IPython calls it for `%load_ext torchtally`."""

    def magic(line: str, cell: str | None = None) -> Any:
        return users(shell, lambda: tally(line) if cell is None else tally_cell(shell, line, cell))

    unload(shell)
    cell_names.append(partial(names_of_cells, shell))
    magic.__doc__ = (
        f"{tally.__doc__}\n\n%%tally [options]: a cell.\n\n{cell_parser().format_help()}"
    )
    shell.register_magic_function(magic, magic_kind="line_cell", magic_name="tally")


def unload(shell: Shell) -> None:
    """Take the magics away again."""
    cell_names.clear()
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("tally", None)


@dataclass(frozen=True, kw_only=True)
class CellOptions(SimulationOptions):
    """What `%%tally` is asked."""

    gpu: str | None = own("--gpu", "the chip to simulate; 8xH100-SXM: several", CHIP)
    rank: int = own("--rank", "which of several GPUs", Form("N", int), default=0)
    steps: int | str | None = own(
        "--steps", "stop after N training steps (default: 2 of the same model)", STEPS
    )
    name: str | None = own("--name", "give the ledger this name; _ is it, too", Form("NAME"))
    output: str | None = output("save the trace")
    limits: tuple[str, ...] = own(
        "--assert",
        "what must hold, or the cell fails: 'peak < 24GiB' (repeatable)",
        Form("LIMIT"),
        is_repeated=True,
    )


def cell_parser() -> Parser:
    """Parser of the words behind `%%tally`."""
    parser = Parser(
        prog="%%tally",
        description="Run a cell on a simulated GPU and show what each of its lines costs.",
        epilog=EPILOG,
    )
    add_options(parser, CellOptions)
    return parser


def tally_cell(shell: Shell, line: str, cell: str) -> Ledger | None:
    """Run a cell; its ledger. Raises what the cell raises, after showing what ran before it."""
    args = parse(cell_parser(), words_of(line))
    if args is None:
        return None
    options = asked(CellOptions, args)
    limits = parse_limits(options.limits)
    if options.name is not None and not options.name.isidentifier():
        raise UsageError(f"--name {options.name}: not a Python name.")
    check_outputs(args)
    place = place_of(options.output, "-o")  # absolute, since the cell may change the directory
    gpus, by_roofline = target_of(gpu_or_default(options.gpu))
    name = name_of_this_cell(shell)
    code = code_of(f"\n{cell}", name)  # the first line is that of the magic
    if code is None:
        return None
    stream = stream_of(shell)
    steps = options.steps if isinstance(options.steps, int) else None
    progress = RunProgress(steps=steps, stream=stream)

    request = RunRequest(
        **simulation_settings(options),
        script=name,
        gpus=gpus,
        world=world_of(gpus, options.rank),
        limit=limit_of(options.steps),
    )

    def begin(recording: Recording) -> None:
        progress.operators = lambda: recording.recorder.clock
        progress.host_operators = lambda: recording.recorder.host_operators
        progress.host_bytes = lambda: recording.gpu.host_bytes
        progress.building = lambda: recording.gpu.builds.current
        progress.peak_bytes = lambda: recording.gpu.peak_allocated_bytes

    with progress.moving():
        done = run_cell(
            code,
            shell.user_ns,
            request,
            prediction=Prediction(by_roofline),
            on_start=begin,
            on_step=progress.complete_step,
        )
    if stream is not None:
        stream.write(f"tally: {progress.line()}")  # stays: it says how much ran
    return report_cell(shell, done, options.name, place, limits)


def report_cell(
    shell: Shell, done: EndedRun, name: str | None, output: str | None, limits: Any
) -> Ledger:
    """The ledger of a cell's run, saved and named as asked for."""
    if output is not None:
        done.trace.save(output)
    ledger = account(done.trace, roofline=known_roofline(done.trace.chip))
    if name is not None:
        shell.user_ns[name] = ledger
    if done.error is not None:
        if ledger.entries:
            show(ledger)
        raise done.error
    findings = check(ledger, limits)
    if not all(finding.holds for finding in findings):
        show(ledger)
        raise LimitError("\n".join(sentence(each) for each in findings if not each.holds))
    return ledger


def names_of_cells(shell: Shell) -> dict[str, str]:
    """What reports call the cells that ran, by the name of the file they were compiled as.

    IPython numbers them (`CachingCompiler`, IPython/core/compilerop.py). Version 7 keeps no list of
    that, but makes the same name of the same text again.
    """
    numbers: dict[str, int] | None = getattr(shell.compile, "_filename_map", None)
    if numbers is None:
        history = shell.history_manager
        inputs = zip(history.input_hist_raw, history.input_hist_parsed, strict=False)
        numbers = {
            shell.compile.get_code_name(f"{raw}{end}", f"{parsed}\n", number): number
            for number, (raw, parsed) in enumerate(inputs)
            for end in ("", "\n")  # the history has none, and the text may have had one
        }
    return {file: f"cell [{number}]" for file, number in numbers.items()}


def name_of_this_cell(shell: Shell) -> str:
    """Name of the cell whose magic runs: the innermost one on the stack.

    `execution_count` may be the next cell's already (ipykernel 7).
    """
    frame: FrameType | None = sys._getframe()
    names = names_of_cells(shell)
    while frame is not None:
        if frame.f_code.co_filename in names:
            return names[frame.f_code.co_filename]
        frame = frame.f_back
    return f"cell [{shell.execution_count}]"


# What the notebook shows ------------------------------------------------------------------------


def show(value: object) -> None:
    """Shows a report below the cell, before its result."""
    from IPython.display import display

    display(value)  # type: ignore[no-untyped-call]


class DisplayedLine:
    """A stream of one line, which a notebook shows below the cell and draws anew."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self._handle: Any = None

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> None:
        """Writes a line in the stead of the one before; that it is to be erased changes nothing."""
        line = {"text/plain": text.replace(CLEAR_LINE, "").strip()}
        if not line["text/plain"]:
            return
        if self._handle is None:
            self._handle = display_line(line)
        else:
            self._handle.update(line, raw=True)

    def flush(self) -> None:
        """Every line is shown at once."""


def display_line(line: dict[str, str]) -> Any:
    from IPython.display import display

    return display(line, raw=True, display_id=True)  # type: ignore[no-untyped-call]


def stream_of(shell: Shell) -> DisplayedLine | None:
    """Stream of a cell's progress; None in a terminal, which has a line of its own for it."""
    return DisplayedLine() if hasattr(shell, "kernel") else None


def users(shell: Shell, action: Callable[[], Any]) -> Any:
    """Do it; errors are shown as the user's own: without our frames and IPython's.

    IPython asks an error for `_render_traceback_` before it makes a traceback itself
    (`InteractiveShell.showtraceback`).
    """
    try:
        return action()
    except TallyError as error:
        render_as(error, [f"tally: error: {error}"])
        raise
    except SyntaxError as error:  # IPython would show its own frames, too
        lines = "".join(traceback.format_exception_only(error)).splitlines()
        shown = ScriptError(str(error))
        render_as(shown, lines)
        raise shown from None
    except (Exception, KeyboardInterrupt) as error:
        tracebacks.strip(error)
        lines = [type(error).__name__]
        if error.__traceback__ is not None:
            details = type(error), error, error.__traceback__
            lines = shell.InteractiveTB.structured_traceback(*details, tb_offset=0)
        render_as(error, lines)
        raise


def render_as(error: BaseException, lines: list[str]) -> None:
    """Have IPython show these lines for an error."""
    error._render_traceback_ = lambda: lines  # type: ignore[attr-defined]

"""`tally run`: run a training script on a simulated GPU, and account for it."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from torchtally.cli.arguments import RunParser
from torchtally.cli.chip_names import gpu_or_default, say
from torchtally.cli.destination import place_of
from torchtally.cli.output import check_columns
from torchtally.cli.run_options import ALL, STAGES, RunOptions
from torchtally.cli.run_state import RunState, StartState
from torchtally.cli.streams import is_interrupt
from torchtally.errors import TallyError, UsageError
from torchtally.options.simulation import simulation_settings
from torchtally.progress import is_terminal

if TYPE_CHECKING:
    from pathlib import Path

    from torchtally.chips import Cluster
    from torchtally.gates.run import RunGates
    from torchtally.report.run_display import RunDisplay
    from torchtally.runs.ranks.mailbox import Mailbox
    from torchtally.runs.ranks.together import SimulatedRanks
    from torchtally.runs.request import RunRequest
    from torchtally.tracer.launchers import Launch
    from torchtally.tracer.script_file import Script
    from torchtally.tracer.steps import StepLimit

SUMMARY = "run a training script on a simulated GPU, and account for it line by line"

STOPPED = (130, 143)
"""By Ctrl-C or SIGTERM."""
STEPS_OF_ONE_MODEL = 2
"""Unless told: the second is the steady state, with optimizer state in memory."""

USAGE = (
    "tally run [options] SCRIPT [ARGS ...] | -m MODULE [ARGS ...] | -c CODE [ARGS "
    "...] | - [ARGS ...]"
)
EPILOG = """\
Options that tally does not know go to the script, as do those after it that the script itself
has under the same name, and everything after --:

examples:
  tally run train.py --gpu H100-SXM
  tally run train.py --batch_size=12 --gpu RTX-4090 -o small.tally
  tally run --gpu A100-SXM --steps 3 train.py -- --steps 500
  tally run --gpu H100-SXM -m mypackage.train --config base.yaml
  tally run train.py --gpu H200 --json report.json 2> report.txt
  tally run train.py --watch                    what it costs so far, while it runs
  tally run generate.py --tokens 32             prefill, and 32 passes that decode
  tally run train.py --html run.html            an interactive page for a browser
  tally run train.py --brief                    the answer in 12 lines
  tally run train.py --brief --json brief.json  in 1 KB; --brief --format json: on stderr
  tally run train.py --assert "peak < 24GiB" --assert "step < 200ms"
  tally run train.py --budget budgets.toml      as last time? --update writes it
  tally run train.py --real-values              activations and gradients of the first step, really
  tally run train.py --gpu 8xH100-SXM --rank 3
  tally run pipeline.py --gpu 4xH100-SXM --rank all
  tally run --gpu 2x8xH100-SXM torchrun --nnodes 2 --nproc_per_node 8 train.py
  tally run train.py --gpu RTX-4090 --what-if checkpoint=Block --what-if optimizer=fused

The script is really executed: it reads its files and prints its output (stdout is all its own).
Only its GPU is simulated, and what it writes goes to a folder beside the trace (run.tally.files):
no file that existed before is changed. The report goes to stderr, the exit code is the script's: 0
when the steps were done, 1 when it raised; 130 on Ctrl-C, 143 on SIGTERM, 124 when --max-seconds
were over; 3 when a limit of --assert or --budget does not hold. The report is printed in every
case.
"""


MOST_RANKS = 64
"""At once: each is a process."""


def limit_of(steps: "int | str | None", tokens: int | None = None) -> "StepLimit":
    """When the script is stopped, by --steps and --tokens."""
    from torchtally.tracer.steps import StepLimit

    if steps is None:
        return StepLimit(steps_of_one_model=STEPS_OF_ONE_MODEL, tokens=tokens)
    return StepLimit(steps if isinstance(steps, int) else None, tokens=tokens)


PARSER = RunParser


def command(options: RunOptions) -> int:
    """Run the script and report; the exit code is the script's."""
    start = StartState()
    try:
        return simulate(options, start)
    except (KeyboardInterrupt, RuntimeError) as error:
        if start.is_over or not is_interrupt(error):
            raise
        say("interrupted while starting: the script has not run", is_quiet=False)
        return STOPPED[0]
    finally:
        start.is_over = True
        start.end()


def simulate(options: RunOptions, start: StartState) -> int:
    """The same, from its start on."""
    from torchtally.gates.run import RunGates
    from torchtally.timing.roofline.sparse import check_sparse_rates
    from torchtally.timing.targets import cluster_of
    from torchtally.tracer.launchers import launch_of
    from torchtally.tracer.script import check

    if not options.script and options.module is None and options.code is None:
        raise UsageError("missing script.\nGive one: `tally run train.py`, -m MODULE or -c CODE.")
    if options.watch and options.quiet:
        raise UsageError("--watch and --quiet cannot be combined.")
    if options.brief and (options.watch or options.columns):
        raise UsageError("--brief has neither a display nor tables: leave out --watch, --columns.")
    gpus = cluster_of(gpu_or_default(options.gpu, is_quiet=options.is_terse))
    check_columns(options.columns)
    if options.real_values:
        from torchtally.cli.real_values import run_for_real

        return run_for_real(options, script_of(options), gpus, start)
    if options.asks_sparsity:
        check_sparse_rates(gpus.chip)
    script = script_of(options)
    launch = launch_of(script)
    script = launch.script if launch else script
    mailbox = own_mailbox()
    options = settled(options, mailbox)
    request = request_of(options, gpus, script, launch)
    check(script)
    gates = RunGates() if mailbox is not None else gates_of(options, request)
    place = place_of(options.output, "-o")
    with ranks_of(options, request, mailbox) as ranks:
        if launch is not None:
            script = launch.script_of(request.world.local_rank)
        last_run = last_run_of(options, script, request)
        state = RunState(options, request, place, script, gates, ranks, stderr_of_run(), last_run)
        code = trace_script(state, start)
    if state.is_drawn and state.is_saved and code not in STOPPED:
        walk_through(options.output, place)
    if sys.stdout is None or sys.stdout.closed:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for whoever flushes it at the end)
    return code


def script_of(options: RunOptions) -> "Script":
    """The script as it was named."""
    from torchtally.tracer.script_file import Script, path_of_command, read_stdin

    return Script(
        options.module or path_of_command(options.script or "-c"),
        options.script_arguments,
        is_module=options.module is not None,
        text=read_stdin() if options.script == "-" else options.code,
    )


def settled(options: RunOptions, mailbox: "Mailbox | None") -> RunOptions:
    """The options with absolute places, since the script may change the directory. Of one of
    several ranks its trace alone is wanted.
    """
    from torchtally.trace.peers import place_of_rank

    place = place_of(options.output, "-o")
    options = replace(
        options,
        json=place_of(options.json, "--json"),
        html=place_of(options.html, "--html"),
        advises=options.advises and (not options.quiet or options.json is not None),
    )
    if mailbox is None:
        return options
    # What a rank that only helps leaves goes with the mailbox.
    rank = mailbox.rank
    place = place_of_rank(
        place if mailbox.is_reported(rank) else str(mailbox.folder / "help"), rank
    )
    os.makedirs(os.path.dirname(place), exist_ok=True)
    alone: dict[str, Any] = {"json": None, "html": None, "advises": False, "watch": False}
    return replace(options, rank=(rank,), output=place, quiet=True, brief=False, **alone)


def last_run_of(options: RunOptions, script: "Script", request: "RunRequest") -> "Path | None":
    """Place of the figures of the script's last brief run, found before it may change a variable
    or directory; None of code that has no name, and of a report that is not brief.
    """
    from torchtally.brief.last_run import last_run_place

    if not options.brief or script.text is not None:
        return None
    cwd = os.getcwd()
    name = f"-m {script.target} in {cwd}" if script.is_module else os.path.realpath(script.target)
    gpus = request.gpus
    return last_run_place(name, f"{gpus.count}x{gpus.chip.name}")


def request_of(
    options: RunOptions, gpus: "Cluster", script: "Script", launch: "Launch | None"
) -> "RunRequest":
    """What is simulated."""
    from torchtally.isolation.run import SUFFIX, folder_beside
    from torchtally.runs.request import RunRequest
    from torchtally.tracer.session import world_of

    rank = options.rank[0] if isinstance(options.rank, tuple) else 0
    return RunRequest(
        **simulation_settings(options),
        script=str(script),
        gpus=gpus,
        world=world_of(gpus, rank, launch),
        limit=limit_of(options.steps, options.tokens),
        what_ifs=(*options.changes, *options.compiler),
        files=folder_beside(place_of(options.output, "-o")),
        files_shown=options.output + SUFFIX,
        variables=launch.environment if launch else {},
        restricts=True,
    )


def gates_of(options: RunOptions, request: "RunRequest") -> "RunGates":
    """What the run is held to. Raises UsageError for what cannot be read."""
    from torchtally.gates.run import run_gates

    gpus = request.gpus
    gpu = gpus.chip.name if gpus.count == 1 else f"{gpus.count}x{gpus.chip.name}"
    place = place_of(options.budget, "--budget")
    return run_gates(options.limits, place, is_update=options.update, run=request.script, gpu=gpu)


def own_mailbox() -> "Mailbox | None":
    """Mailbox of a process that simulates one of several ranks for the first; else None."""
    if "TALLY_RANK_OF" not in os.environ:
        return None
    from torchtally.runs.ranks.supervisor import mailbox_of_this_rank

    mailbox = mailbox_of_this_rank()
    assert mailbox is not None
    return mailbox


@contextmanager
def ranks_of(
    options: RunOptions, request: "RunRequest", mailbox: "Mailbox | None"
) -> "Iterator[SimulatedRanks | None]":
    """All ranks that are simulated; None of a run of one GPU."""
    from torchtally.runs.ranks.together import SimulatedRanks

    place, world = place_of(options.output, "-o"), request.world
    if mailbox is not None:
        yield SimulatedRanks(mailbox, place, is_first=False)
        return
    asked = ranks_asked(options.rank, world.size)
    # What comes on stdin comes once.
    if world.size == 1 or options.script == "-":
        yield None
        return
    from torchtally.runs.ranks.supervisor import other_ranks

    with other_ranks(options.argv, world.rank, asked) as mailbox:
        yield SimulatedRanks(mailbox, place, is_first=True)


def ranks_asked(choice: "tuple[int, ...] | str", size: int) -> "list[int] | None":
    """Ranks by number; None for those that turn out to be needed. Raises UsageError for too
    many.
    """
    if choice == STAGES:
        return None
    ranks = list(range(size)) if isinstance(choice, str) else list(choice)
    if len(ranks) > MOST_RANKS:
        raise UsageError(
            f"--rank {ALL}: {size} ranks are {size} processes, and at most {MOST_RANKS} run at "
            f"once. Name some: --rank 0,{size - 1}, or those that differ: --rank {STAGES}."
        )
    if ranks[-1] >= size or ranks[0] < 0:
        raise UsageError(f"--rank {ranks[-1]}: {size} GPUs have the ranks 0 to {size - 1}")
    return ranks


def stderr_of_run() -> TextIO:
    """The stream of the report; a new one where 2>&- has closed it."""
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    return sys.stderr


def trace_script(state: RunState, start: StartState) -> int:
    """Run the script on the target and report, however it ends. Returns the exit code."""
    from torchtally.cli.own_errors import sentence
    from torchtally.cli.run_report import conclude
    from torchtally.isolation.callers import Ours
    from torchtally.report.run_progress import RunProgress
    from torchtally.runs.request import simulation
    from torchtally.timing.prediction import Prediction
    from torchtally.timing.targets import roofline
    from torchtally.tracer.script import run
    from torchtally.tracer.session import said_at_start
    from torchtally.tracer.stopper import ScriptOutcome, Stopper

    request, options = state.request, state.options
    if remark := said_at_start():
        say(remark, is_quiet=options.is_terse)
    display = display_of(state)
    progress = RunProgress(steps=request.limit.steps, is_quiet=options.is_terse, display=display)
    state.is_drawn = display is not None

    def complete_step(step: int) -> None:
        if not stopper.is_in_child:
            progress.complete_step(step)

    def leaving(outcome: ScriptOutcome) -> int:
        session.recorder.is_stopped = True
        progress.stop()
        return conclude(state, session, isolated, outcome)

    stopper = Stopper(leaving, max_seconds=options.max_seconds)
    mailbox = None if state.ranks is None else state.ranks.mailbox
    simulated = simulation(
        request,
        prediction=Prediction(roofline(request.target.name)),
        on_step=complete_step,
        on_done=stopper.steps_are_done,
        exchange=mailbox,
        own=() if mailbox is None else (str(mailbox.folder),),
    )
    code: int | None = None
    try:
        with progress.moving(), simulated as (isolated, session):
            if mailbox is not None:
                mailbox.outside = Ours.thread
                mailbox.tell = lambda text: say(text, is_quiet=options.is_terse)
            progress.operators = lambda: session.recorder.clock
            progress.tokens = lambda: session.recorder.tokens.decoded
            progress.host_operators = lambda: session.recorder.host_operators
            progress.host_bytes = lambda: session.gpu.host_bytes
            progress.building = lambda: session.gpu.builds.current
            progress.peak_bytes = lambda: session.gpu.peak_allocated_bytes
            if display is not None:
                display.refresh = lambda: session.recorder.tell(display.account)
                display.now_bytes = lambda: session.gpu.allocated_bytes
                display.peak_bytes = progress.peak_bytes
            start.end()
            code = leaving(run(state.script, stopper))
            leave_threads_behind(code)
    except Exception as error:
        if code is None or isinstance(error, TallyError):
            raise
        say(sentence("an orderly end", error), is_quiet=False)
    return code


def display_of(state: RunState) -> "RunDisplay | None":
    """What --watch draws; None without it, or where nothing can be drawn."""
    if not state.options.watch:
        return None
    from torchtally.cli.output import is_coloured
    from torchtally.ledger import RunningAccount
    from torchtally.report.report import is_ascii
    from torchtally.report.run_display import RunDisplay
    from torchtally.timing.targets import roofline

    stderr, target = state.stderr, state.request.target
    if not is_terminal(stderr):
        say("--watch needs a terminal on stderr; printing progress lines instead", is_quiet=False)
        return None
    return RunDisplay(
        RunningAccount(roofline(target.name)),
        chip=target.name,
        capacity_bytes=target.total_memory_bytes,
        is_coloured=is_coloured(stderr),
        is_ascii=is_ascii(stderr.encoding),
    )


def walk_through(output: str, place: str) -> None:
    """What --watch ends with: the viewer, where there is a terminal to draw it on."""
    from torchtally.cli.view import view_file, why_no_screen

    if reason := why_no_screen():
        say(f"no `tally view {output}` here: {reason}", is_quiet=False)
    else:
        view_file(place)


def leave_threads_behind(code: int) -> None:
    """End the process here if the script's threads still run: their GPU is about to go."""
    from torchtally.tracer.stopper import flush_outputs

    if [thread for thread in threading.enumerate() if thread is not threading.main_thread()]:
        flush_outputs()
        os._exit(code)

"""`tally run`: run a training script on a simulated GPU, and account for it."""

import argparse
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from torchtally.cli.arguments import RunParser, Subparsers, add_isolation, seconds
from torchtally.cli.chip_names import gpu_or_default, say
from torchtally.cli.destination import add_output, place_of
from torchtally.cli.output import add_columns, check_columns
from torchtally.cli.run_state import RunState
from torchtally.errors import TallyError, UsageError
from torchtally.options import positive_count
from torchtally.progress import is_terminal
from torchtally.report.formats import format_names
from torchtally.units import parse_fraction

if TYPE_CHECKING:
    from torchtally.chips import Cluster
    from torchtally.gates.run import RunGates
    from torchtally.report.run_display import RunDisplay
    from torchtally.runs.ranks.mailbox import Mailbox
    from torchtally.runs.ranks.together import SimulatedRanks
    from torchtally.runs.request import RunRequest
    from torchtally.tracer.launchers import Launch
    from torchtally.tracer.script_file import Script
    from torchtally.tracer.steps import StepLimit

NAME = "run"
SUMMARY = "run a training script on a simulated GPU, and account for it line by line"

DEFAULT_OUTPUT = "run.tally"
STOPPED = (130, 143)
"""By Ctrl-C or SIGTERM."""
STEPS_OF_ONE_MODEL = 2
"""Unless told: the second is the steady state, with optimizer state in memory."""

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
  tally run train.py --assert "peak < 24GiB" --assert "step < 200ms"
  tally run train.py --budget budgets.toml      as last time? --update writes it
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
ALL, STAGES = "all", "stages"


def rank_choice(text: str) -> "tuple[int, ...] | str":
    """Ranks by their numbers, lowest first, "stages" or "all". Raises ArgumentTypeError."""
    if text in (ALL, STAGES):
        return text
    try:
        return tuple(sorted({int(number) for number in text.split(",")}))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected numbers of ranks (0 or 0,7), {STAGES} or {ALL}, got {text!r}"
        ) from None


def step_count(text: str) -> "int | str":
    return "all" if text == "all" else positive_count(text)


def limit_of(steps: "int | str | None", tokens: int | None = None) -> "StepLimit":
    """When the script is stopped, by --steps and --tokens."""
    from torchtally.tracer.steps import StepLimit

    if steps is None:
        return StepLimit(steps_of_one_model=STEPS_OF_ONE_MODEL, tokens=tokens)
    return StepLimit(steps if isinstance(steps, int) else None, tokens=tokens)


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        usage="tally run [options] SCRIPT [ARGS ...] | -m MODULE [ARGS ...] | -c CODE [ARGS ...] "
        "| - [ARGS ...]",
        description="Run an unmodified training script on a simulated GPU and report what each "
        "line, module and operator of a training step costs.",
        epilog=EPILOG,
    )
    parser.__class__ = RunParser
    parser.add_argument("--gpu", metavar="NAME",
                        help="the chip to simulate; `tally gpus` lists them (default: the one that "
                        "TALLY_GPU names, else H100-SXM)")  # fmt: skip
    parser.add_argument("--rank", type=rank_choice, default="stages", metavar="N[,N...]|stages|all",
                        help="with several GPUs (--gpu 8xH100-SXM): the ranks to simulate "
                        "(default 'stages': rank 0, and the pipeline stages it communicates "
                        "with; the other ranks are assumed to behave alike)")  # fmt: skip
    parser.add_argument("--steps", type=step_count, metavar="N|all",
                        help="stop after N training steps in all; 'all' runs the script to its end "
                        "(default: after 2 steps of the same model; the second one is the steady "
                        "state, with optimizer state in memory)")  # fmt: skip
    parser.add_argument("--tokens", type=positive_count, metavar="N",
                        help="for a script that generates: stop after N decoding passes "
                        "(default: it runs to its end)")  # fmt: skip
    add_output(parser, "-o", "--output", default=DEFAULT_OUTPUT, metavar="FILE",
               help=f"where the trace goes (default {DEFAULT_OUTPUT}), "
               "for `tally show`")  # fmt: skip
    parser.add_argument("--format", choices=format_names(), default="text", metavar="FORMAT",
                        help="format of the report on stderr: "
                        f"{', '.join(format_names())}")  # fmt: skip
    add_output(parser, "--json", metavar="FILE", help="also write the report as JSON")
    add_output(parser, "--html", metavar="FILE",
               help="also write an interactive page: source, memory over time, treemap, "
               "roofline; `tally report` makes it from a trace")  # fmt: skip
    add_columns(parser)
    parser.add_argument("-m", dest="module", metavar="MODULE",
                        help="run a module, as `python -m` does")  # fmt: skip
    parser.add_argument("-c", dest="code", metavar="CODE",
                        help="run this code, as `python -c` does; - runs stdin, and a notebook "
                        "(.ipynb) runs its cells")  # fmt: skip
    parser.add_argument("--max-seconds", type=seconds, metavar="S",
                        help="stop a script that runs longer, and report")  # fmt: skip
    parser.add_argument("--nonzero-fraction", type=parse_fraction, default=1.0, metavar="F",
                        help="share of a mask assumed to be true where a shape depends on unknown "
                        "values (default 1: the upper bound)")  # fmt: skip
    parser.add_argument("--placeholder-limit", type=positive_count, default=10_000, metavar="N",
                        help="stop a loop whose condition reads N unknown values without an "
                        "optimizer step in between (default 10,000)")  # fmt: skip
    parser.add_argument("--host-clock", action="store_true",
                        help="the script's own clocks (time.time, perf_counter, ...) read host "
                        "time instead of predicted time")  # fmt: skip
    add_isolation(parser, "FILE.files (beside -o FILE)")
    parser.add_argument("--what-if", action="append", default=[], metavar="CHANGE",
                        help="run the script as if it were changed: checkpoint=CLASS, "
                        "autocast=bfloat16, optimizer=fused, compile, bucket_cap_mb=100, "
                        "reshard_after_forward=False (repeatable)")  # fmt: skip
    parser.add_argument("--compile", choices=("inductor", "eager"), default="inductor",
                        help="what torch.compile does: PyTorch's own inductor compiles for the "
                        "simulated chip (default), or nothing; after the script it is the "
                        "script's own option")  # fmt: skip
    parser.add_argument("--no-oom", action="store_true",
                        help="go on beyond the chip's memory instead of raising "
                        "torch.OutOfMemoryError (OOM)")  # fmt: skip
    parser.add_argument("--no-advice", action="store_true",
                        help="do not rerun the script to try changes: after OOM, those that "
                        "would make it fit; on several GPUs, those that would hide more of "
                        "the network; with --what-if, the script without it")  # fmt: skip
    parser.add_argument("--assert", action="append", default=[], metavar="LIMIT", dest="limits",
                        help="a limit; if it does not hold, the exit code is 3: 'peak < 24GiB', "
                        "'step < 200ms'; also reserved, saved, flops, forward, backward, "
                        "recompute, parameters, mfu, tokens/s, samples/s "
                        "(repeatable)")  # fmt: skip
    parser.add_argument("--budget", metavar="FILE",
                        help="limits of this run, from a file kept in the repository")  # fmt: skip
    parser.add_argument(
        "--update", action="store_true", help="write this run's figures to the file of --budget"
    )
    parser.add_argument("--watch", action="store_true",
                        help="on a terminal, show the run while it runs: FLOPs, memory, the "
                        "hottest lines so far; then the report, and `tally view`")  # fmt: skip
    parser.add_argument(
        "--quiet", action="store_true", help="neither progress nor report on stderr"
    )
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Run the script and report; the exit code is the script's."""
    from torchtally.gates.run import RunGates
    from torchtally.timing.targets import cluster_of
    from torchtally.tracer.launchers import launch_of
    from torchtally.tracer.script import check

    if args.script is None and args.module is None and args.code is None:
        raise UsageError("missing script.\nGive one: `tally run train.py`, -m MODULE or -c CODE.")
    if args.watch and args.quiet:
        raise UsageError("--watch and --quiet cannot be combined.")
    gpus = cluster_of(gpu_or_default(args.gpu, is_quiet=args.quiet))
    check_columns(args.columns)
    script = script_of(args)
    launch = launch_of(script)
    script = launch.script if launch else script
    mailbox = own_mailbox()
    request = request_of(args, gpus, script, launch, mailbox)
    check(script)
    gates = RunGates() if mailbox is not None else gates_of(args, request)
    with ranks_of(args, request, mailbox) as ranks:
        if launch is not None:
            script = launch.script_of(request.world.local_rank)
        state = RunState(request, script, gates, ranks, stderr_of_run())
        code = trace_script(state)
    if state.is_drawn and state.is_saved and code not in STOPPED:
        walk_through(request)
    if sys.stdout is None or sys.stdout.closed:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (for whoever flushes it at the end)
    return code


def script_of(args: argparse.Namespace) -> "Script":
    """The script as it was named."""
    from torchtally.tracer.script_file import Script, path_of_command, read_stdin

    return Script(
        args.module or path_of_command(args.script or "-c"),
        tuple(args.script_arguments),
        is_module=args.module is not None,
        text=read_stdin() if args.script == "-" else args.code,
    )


def request_of(
    args: argparse.Namespace,
    gpus: "Cluster",
    script: "Script",
    launch: "Launch | None",
    mailbox: "Mailbox | None",
) -> "RunRequest":
    """What was asked. Of one of several ranks its trace alone is wanted."""
    from torchtally.isolation.run import SUFFIX, folder_beside
    from torchtally.runs.request import RunRequest
    from torchtally.trace.peers import place_of_rank
    from torchtally.tracer.session import world_of

    # Absolute, since the script may change the directory.
    output, trace_place = args.output, place_of(args.output, "-o")
    json_place, html_place = place_of(args.json, "--json"), place_of(args.html, "--html")
    is_quiet, advises = (
        args.quiet,
        not args.no_advice and (not args.quiet or json_place is not None),
    )
    rank = args.rank[0] if isinstance(args.rank, tuple) else 0
    if mailbox is not None:
        rank, json_place, html_place, is_quiet, advises = mailbox.rank, None, None, True, False
        # What a rank that only helps leaves goes with the mailbox.
        place = trace_place if mailbox.is_reported(rank) else str(mailbox.folder / "help")
        output = trace_place = place_of_rank(place, rank)
        os.makedirs(os.path.dirname(output), exist_ok=True)
    return RunRequest(
        script=str(script),
        gpus=gpus,
        world=world_of(gpus, rank, launch),
        limit=limit_of(args.steps, args.tokens),
        nonzero_fraction=args.nonzero_fraction,
        memory_is_limited=not args.no_oom,
        placeholder_limit=args.placeholder_limit,
        what_ifs=(*args.what_if, *["compile=off"] * (args.compile == "eager")),
        host_clock=args.host_clock,
        writes=args.writes,
        files=folder_beside(trace_place),
        files_shown=output + SUFFIX,
        network=args.network,
        variables=launch.environment if launch else {},
        restricts=True,
        max_seconds=args.max_seconds,
        output=output,
        trace_place=trace_place,
        json_place=json_place,
        html_place=html_place,
        format=args.format,
        columns=args.columns,
        budget=args.budget,
        is_quiet=is_quiet,
        is_watched=args.watch and mailbox is None,
        advises=advises,
        compares=bool(args.what_if) and advises,
    )


def gates_of(args: argparse.Namespace, request: "RunRequest") -> "RunGates":
    """What the run is held to. Raises UsageError for what cannot be read."""
    from torchtally.gates.run import run_gates

    gpus = request.gpus
    gpu = gpus.chip.name if gpus.count == 1 else f"{gpus.count}x{gpus.chip.name}"
    place = place_of(args.budget, "--budget")
    return run_gates(args.limits, place, is_update=args.update, run=request.script, gpu=gpu)


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
    args: argparse.Namespace, request: "RunRequest", mailbox: "Mailbox | None"
) -> "Iterator[SimulatedRanks | None]":
    """All ranks that are simulated; None of a run of one GPU."""
    from torchtally.runs.ranks.together import SimulatedRanks

    place, world = request.trace_place, request.world
    if mailbox is not None:
        yield SimulatedRanks(mailbox, place, is_first=False)
        return
    asked = ranks_asked(args.rank, world.size)
    # What comes on stdin comes once.
    if world.size == 1 or args.script == "-":
        yield None
        return
    from torchtally.runs.ranks.supervisor import other_ranks

    with other_ranks(args.argv, world.rank, asked) as mailbox:
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


def trace_script(state: RunState) -> int:
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

    request = state.request
    if remark := said_at_start():
        say(remark, is_quiet=request.is_quiet)
    display = display_of(state)
    progress = RunProgress(steps=request.limit.steps, is_quiet=request.is_quiet, display=display)
    state.is_drawn = display is not None

    def complete_step(step: int) -> None:
        if not stopper.is_in_child:
            progress.complete_step(step)

    def leaving(outcome: ScriptOutcome) -> int:
        session.recorder.is_stopped = True
        progress.stop()
        return conclude(state, session, isolated, outcome)

    stopper = Stopper(leaving, max_seconds=request.max_seconds)
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
                mailbox.tell = lambda text: say(text, is_quiet=request.is_quiet)
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
            code = leaving(run(state.script, stopper))
            leave_threads_behind(code)
    except Exception as error:
        if code is None or isinstance(error, TallyError):
            raise
        say(sentence("an orderly end", error), is_quiet=False)
    return code


def display_of(state: RunState) -> "RunDisplay | None":
    """What --watch draws; None without it, or where nothing can be drawn."""
    if not state.request.is_watched:
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


def walk_through(request: "RunRequest") -> None:
    """What --watch ends with: the viewer, where there is a terminal to draw it on."""
    from torchtally.cli.view import view_file, why_no_screen

    if reason := why_no_screen():
        say(f"no `tally view {request.output}` here: {reason}", is_quiet=False)
    else:
        view_file(request.trace_place)


def leave_threads_behind(code: int) -> None:
    """End the process here if the script's threads still run: their GPU is about to go."""
    from torchtally.tracer.stopper import flush_outputs

    if [thread for thread in threading.enumerate() if thread is not threading.main_thread()]:
        flush_outputs()
        os._exit(code)

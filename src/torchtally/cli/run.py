"""`tally run`: run a training script on a GPU that is not there, and account for it."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchtally.errors import UsageError

if TYPE_CHECKING:
    from torchtally.record import Trace

NAME = "run"
SUMMARY = "run a training script on a GPU that is not there, and account for it line by line"

DEFAULT_OUTPUT = "run.tally"

EPILOG = """\
Everything tally does not know goes to the script; after -- everything does:

examples:
  tally run train.py --gpu H100-SXM
  tally run train.py --batch_size=12 --gpu RTX-4090 -o small.tally
  tally run --gpu A100-SXM --steps 3 train.py -- --steps 500
  tally run --gpu H100-SXM -m mypackage.train --config base.yaml
  tally run train.py --gpu H200 --json report.json 2> report.txt

The script is really executed: it reads its files, prints its output (stdout is all its own) and
may write checkpoints. Only its GPU is not there. The report goes to stderr, the exit code is the
script's: 0 when the steps were done, 1 when it raised, 130 on Ctrl-C.
"""


def add_parser(subparsers: "argparse._SubParsersAction[RunParser]") -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        usage="tally run [options] SCRIPT [ARGS ...] | tally run [options] -m MODULE [ARGS ...]",
        description="Run an unmodified training script on a simulated GPU and say what each line, "
        "module and operator of a training step costs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.__class__ = RunParser
    parser.add_argument("--gpu", metavar="NAME", required=True,
                        help="the chip to simulate; `tally gpus` lists them")  # fmt: skip
    parser.add_argument("--steps", type=positive, default=2, metavar="N",
                        help="stop after N optimizer steps (default 2: the last one is the steady "
                        "state, with optimizer state in memory)")  # fmt: skip
    parser.add_argument("-o", "--output", default=DEFAULT_OUTPUT, metavar="FILE",
                        help=f"where the trace goes (default {DEFAULT_OUTPUT}), "
                        "for `tally show`")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON, too")
    parser.add_argument("-m", dest="module", metavar="MODULE",
                        help="run a module, as `python -m` does")  # fmt: skip
    parser.add_argument("--max-seconds", type=seconds, metavar="S",
                        help="stop a script that takes longer, and report what there is")  # fmt: skip
    parser.add_argument("--nonzero-fraction", type=fraction, default=1.0, metavar="F",
                        help="share of a mask taken to be true where a shape depends on values "
                        "nobody has (default 1: the upper bound)")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress, no report on stderr")
    parser.set_defaults(command=command)


class RunParser(argparse.ArgumentParser):
    """Takes its own options from among the script's; what is left is the script's."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        ours, script, theirs = self.split(list(args if args is not None else sys.argv[1:]))
        namespace, _ = super().parse_known_args(ours, namespace)
        if namespace.module is not None and script is not None:
            script, theirs = None, [script, *theirs]
        namespace.script, namespace.script_arguments = script, theirs
        return namespace, []

    def split(self, args: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
        """(tally's own arguments, the script, the script's arguments)."""
        ours: list[str] = []
        theirs: list[str] = []
        script: str | None = None
        module = False
        rest = iter(args)
        for arg in rest:
            if arg == "--":
                theirs += rest
                break
            name = arg.split("=", 1)[0]
            action = self._option_string_actions.get(name)
            started = script is not None or module
            if action is not None and not (started and name in ("-h", "--help", "-m")):
                ours.append(arg)
                if action.nargs is None and "=" not in arg:
                    ours += [value for value in (next(rest, None),) if value is not None]
                module = module or name == "-m"
            elif started:
                theirs.append(arg)
            elif arg.startswith("-") and arg != "-":
                ours.append(arg)  # not ours and no script yet: argparse says so
                self.error(f"unrecognized arguments: {arg} (before the script)")
            else:
                script = arg
        if script is None and not module and theirs:
            script, theirs = theirs[0], theirs[1:]
        return ours, script, theirs


def positive(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) < 10**9):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps, 1 or more")
    return int(text)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share between 0 and 1")
    return value


def command(args: argparse.Namespace) -> int:
    """Run the script and report; the exit code is the script's."""
    from torchtally.hardware import chip

    if args.script is None and args.module is None:
        raise UsageError("which script?\nGive one: `tally run train.py --gpu NAME`, or -m MODULE.")
    target = chip(args.gpu)
    for path in (args.output, args.json):
        check_writable(path)

    from torchtally.cli.progress import Progress
    from torchtally.tracer.script import Script, check
    from torchtally.tracer.session import Recording, trace_script

    script = Script(args.module or args.script, tuple(args.script_arguments),
                    is_module=args.module is not None)  # fmt: skip
    check(script)
    progress = Progress(is_quiet=args.quiet)
    progress.steps_wanted = args.steps

    def started(recording: Recording) -> None:
        progress.operators = lambda: recording.recorder.clock
        progress.peak_bytes = lambda: recording.gpu.peak_allocated_bytes

    def finished(trace: "Trace", code: int) -> None:
        progress.stop()
        report(trace, args)

    with progress.moving():
        return trace_script(
            script,
            gpu=target,
            steps=args.steps,
            finished=finished,
            said=progress.step_completed,
            started=started,
            max_seconds=args.max_seconds,
            nonzero_fraction=args.nonzero_fraction,
        )


def check_writable(path: str | None) -> None:
    """Say before the run, not after it, that a file cannot be written."""
    if path is None or path == "-":
        return
    directory = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path) or not os.path.isdir(directory):
        what = "is a directory" if os.path.isdir(path) else f"{directory} does not exist"
        raise UsageError(f"{path}: cannot be written, {what}.\nChoose another file with -o.")
    if not os.access(directory if not os.path.exists(path) else path, os.W_OK):
        raise UsageError(f"{path}: no permission to write.\nChoose another file with -o.")


def report(trace: "Trace", args: argparse.Namespace) -> None:
    """Write the trace, then say what is in it."""
    import gc

    from torchtally.cli.output import emit, is_coloured, width, write_or_emit
    from torchtally.ledger import account
    from torchtally.record.file import write_trace
    from torchtally.report.json import dumps, ledger_document
    from torchtally.report.text import summary_text
    from torchtally.views.summary import summarise

    gc.disable()  # a million records, none of them garbage
    write_trace(trace, args.output)
    ledger = account(trace)
    if args.json is not None:
        write_or_emit(dumps(ledger_document(ledger)), args.json)
    if not args.quiet:
        text = summary_text(
            summarise(ledger), file=args.output, width=width(), is_coloured=is_coloured(sys.stderr)
        )
        emit(text, sys.stderr)

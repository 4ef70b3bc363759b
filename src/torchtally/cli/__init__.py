"""The command `tally`. One command per file; a file is imported when its command is used.

A command's module has

    SUMMARY, EPILOG               its line in `tally --help`, and what its own help ends with
    USAGE, PARSER                 where these are not those of every command
    command(options) -> int       does it; returns the exit status. `options` is annotated with the
                                  record of what is asked, whose docstring describes the command

or makes its parser by itself, in `add_parser(subparsers)`. It imports torch, rich and msgspec
inside functions only, so that `tally --help` is immediate.
"""

import argparse
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from inspect import getdoc
from types import ModuleType

from torchtally.cli.arguments import Parser, Subparsers
from torchtally.cli.declared import declare
from torchtally.cli.destination import check_outputs
from torchtally.cli.installation import lack
from torchtally.cli.streams import is_interrupt, say, unwritable_as_error
from torchtally.errors import OutputError, TallyError

TASKS: dict[str, tuple[str, ...]] = {
    "account for a script or a model": ("run", "show", "view", "report", "diff", "export",
                                        "summary", "fit", "fix", "tune", "budget"),
    "plan, before there is a script": ("plan", "gpus"),
    "compare with real hardware": ("explain", "watch", "audit", "bench"),
    "train": ("train", "sweep", "sample", "data"),
    "look things up": ("dtypes", "tensor", "glossary", "schema"),
    "serve": ("serve", "mcp", "lsp"),
}  # fmt: skip
"""Commands by what one wants to do, in the order of `tally --help`."""
COMMANDS = tuple(command for commands in TASKS.values() for command in commands)

NOTHING_ASKED = 2
"""`tally` alone prints its help. Nothing was done: a script with an empty variable notices."""
INTERRUPTED = 130
BROKEN_PIPE = 141
"""128 and the signal's number, as a shell reports a program that SIGINT or SIGPIPE ended."""

EPILOG = """\
examples:
  tally run train.py                            what does each line of a training step cost?
  tally run train.py --batch_size=32 --gpu A100 -o big.tally
  tally show big.tally --by module --top 20     other views of it, without running again
  tally summary model.py:Net --input 8x3x224x224      a model by itself, module by module
  tally fit train.py --vary "--batch_size={}" --gpu H100-SXM    the largest that fits
  tally plan llama-3-70b --tokens 15T --gpus 1024xH100-SXM      napkin math with its working
  tally bench                                   what this machine achieves of its data sheet
  tally gpus                                    the GPUs that can be simulated
  tally dtypes 0.1 1e-8                         what numbers become in fp16, bf16, fp8, nvfp4
  tally tensor "x.T[1:]" --let x=3x4            a view or a copy, and where its elements lie

`tally COMMAND --help` explains a command.
"""


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    if argv is None:
        from torchtally.isolation.own_process import own_process

        own_process()
        argv = sys.argv[1:]
    if sys.stderr is None:  # closed by the caller: messages must not land in stdout
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        if not argv:
            parser(argv).print_help()
            return NOTHING_ASKED
        args = parsed(argv)
        with collection_kept():
            status: int = args.command(args)
        _flush_stdout()
    except TallyError as error:
        if isinstance(error, OutputError):
            _silence_stdout()
        say(f"tally: error: {error}")
        return error.exit_code
    except (ImportError, AttributeError) as error:
        if (sentence := lack(error)) is None:
            raise
        say(f"tally: error: {sentence}")
        return TallyError.exit_code
    except (KeyboardInterrupt, RuntimeError) as error:
        if not is_interrupt(error):
            raise
        say("tally: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    return status


@contextmanager
def collection_kept() -> Iterator[None]:
    """Commands turn Python's garbage collection off, since their process is short. It is on again
    afterwards where a test, a script or a notebook goes on.
    """
    was_on = gc.isenabled()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def parsed(argv: list[str]) -> argparse.Namespace:
    """The arguments. Raises UsageError where they name a file that is not to be replaced, and
    SystemExit where they are none, having said why.
    """
    try:
        args = parser(argv).parse_args(argv, argparse.Namespace(argv=argv))
    except SystemExit:  # --help and --version have printed
        _flush_stdout()
        raise
    check_outputs(args)
    return args


def parser(argv: list[str]) -> argparse.ArgumentParser:
    """The parser for these arguments: of the one command they name, else of all."""
    top = TaskParser(
        prog="tally",
        description="Run an unmodified PyTorch training script on a simulated GPU, "
        "and account for it line by line.",
        epilog=EPILOG,
    )
    top.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for name in (argv[0],) if argv and argv[0] in COMMANDS else COMMANDS:
        if name in argv:
            _add(commands, _module(name), name)
        else:  # a name to choose from, or to be near a misspelled one
            commands.add_parser(name)
    return top


def _add(commands: Subparsers, module: ModuleType, name: str) -> None:
    """Add the parser of a command."""
    if hasattr(module, "add_parser"):
        module.add_parser(commands)
        return
    record = module.command.__annotations__["options"]
    parser = commands.add_parser(
        name,
        help=module.SUMMARY,
        usage=getattr(module, "USAGE", None),
        description=getdoc(record),
        epilog=module.EPILOG,
    )
    parser.__class__ = getattr(module, "PARSER", Parser)
    declare(parser, record, module.command)


def _module(name: str) -> ModuleType:
    return import_module(f"torchtally.cli.{name}")


class TaskParser(Parser):
    """Parser of `tally` itself, whose help lists commands by what one wants to do."""

    def format_help(self) -> str:
        """The help, as argparse lays it out."""
        formatter = self.formatter_class(prog=self.prog)
        formatter.add_usage("tally [-h] [--version] COMMAND ...", [], [])
        formatter.add_text(self.description)
        for task, commands in TASKS.items():
            formatter.start_section(task)
            for name in commands:
                summary = _module(name).SUMMARY
                formatter.add_argument(argparse.Action([], name, metavar=name, help=summary))
            formatter.end_section()
        formatter.add_text(EPILOG)
        return formatter.format_help()


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        with unwritable_as_error():
            print(f"tally {version('torchtally')}", flush=True)
        parser.exit()


def _flush_stdout() -> None:
    if sys.stdout is not None and not sys.stdout.closed:
        with unwritable_as_error():
            sys.stdout.flush()


def _silence_stdout() -> None:
    """Its reader has gone or its disk is full: keep Python from failing when it flushes at exit."""
    with suppress(OSError, ValueError, AttributeError):  # a stream without a file, or none at all
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())

"""`tally report`: the interactive page of a run, one file for a browser."""

import argparse
from typing import TYPE_CHECKING

from torchtally.cli.arguments import Subparsers
from torchtally.cli.chip_names import say_variants
from torchtally.cli.destination import add_output, check_output
from torchtally.cli.ledgers import add_convention, ledger_of_file
from torchtally.cli.output import write_or_emit
from torchtally.cli.show import chip_of, step_selection
from torchtally.cli.sources import source_texts

if TYPE_CHECKING:
    from torchtally.ledger import Ledger

NAME = "report"
SUMMARY = "an interactive page of a run: source, memory over time, treemap, roofline"

EPILOG = """\
examples:
  tally run train.py                      leaves its trace in run.tally
  tally report run.tally                  writes run.html beside it: open it in a browser
  tally report run.tally -o /tmp/page.html
  tally report run.tally --gpu A100-SXM   the same run, timed on another chip
  tally report run.tally --step all       the whole run instead of a steady step
  tally report run.tally --no-source      without the text of the files that ran

The page is one file. It loads nothing, and its policy forbids it to: it can be kept, sent and
opened without a network. With the source, it holds the text of the Python files that ran, as far
as they are on this machine and still are what ran; without, the lines that ran alone.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Write an interactive page of a run: verdict, source with costs by line, "
        "memory over time, treemap of the peak, modules, operators, roofline, streams.",
        epilog=EPILOG,
    )
    parser.add_argument("file", metavar="FILE", help="a trace, as `tally run -o FILE` wrote it")
    add_output(
        parser,
        "-o",
        "--output",
        metavar="PAGE",
        help="where the page goes (default: FILE with .html; - for stdout)",
    )
    add_account(parser)
    parser.add_argument(
        "--no-source", action="store_true", help="no text of files but the lines that ran"
    )
    parser.set_defaults(command=command)


def add_account(parser: argparse.ArgumentParser) -> None:
    """Add what says how the trace is accounted for."""
    parser.add_argument("--gpu", metavar="NAME", help="another chip to time the run on")
    parser.add_argument(
        "--step", type=step_selection, metavar="N|N..M|all", help="what the totals are of"
    )
    add_convention(parser)


def command(args: argparse.Namespace) -> int:
    """Write the page. Raises TraceFileError for a file that is not a whole trace."""
    place = args.output or f"{args.file.removesuffix('.tally')}.html"
    check_output(place, "-o", args)
    ledger = ledger_of(args)
    write_page(ledger, place, has_source=not args.no_source)
    if place != "-":
        print(place)
    return 0


def ledger_of(args: argparse.Namespace) -> "Ledger":
    """The trace that is asked for, accounted for. Raises TraceFileError, or UsageError for an
    unknown chip or step.
    """
    say_variants([args.gpu] if args.gpu else [])
    return ledger_of_file(args, chip_of(args.gpu) if args.gpu else None)


def write_page(ledger: "Ledger", place: str, *, has_source: bool = True) -> None:
    """Writes to a file, or to stdout for "-". Raises UsageError where it cannot be written."""
    from torchtally.report.browser.page import browser_page

    write_or_emit(browser_page(ledger, source_texts(ledger) if has_source else {}), place)

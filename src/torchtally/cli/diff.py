"""`tally diff`: what changed between two traces."""

import argparse
from typing import TYPE_CHECKING

from torchtally.cli.arguments import Subparsers, one_of, positive_count
from torchtally.cli.output import add_columns, add_filter, add_format, chosen, write_report
from torchtally.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchtally.ledger import Ledger

NAME = "diff"
SUMMARY = "what changed between two traces: time, FLOPs, memory, by line or module"

EPILOG = """\
examples:
  tally run train.py -o before.tally            then edit train.py, and
  tally run train.py -o after.tally
  tally diff before.tally after.tally           the whole, memory, lines and modules that differ
  tally diff before.tally after.tally --by line --top 20
  tally diff before.tally after.tally --format markdown      for a pull request
  tally diff before.tally after.tally --by op --json | jq '.rows[0]'

A line is the same where its text is, wherever it moved to. Both runs may be of other chips.
"""


def names() -> "Iterable[str]":
    from torchtally.views.difference import DIFFERENCES

    return DIFFERENCES


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Compare two traces: a step of each, and the memory of both runs.",
        epilog=EPILOG,
    )
    parser.add_argument("before", metavar="BEFORE", help="a trace, as `tally run -o FILE` wrote it")
    parser.add_argument("after", metavar="AFTER", help="another, of the changed script")
    parser.add_argument(
        "--by", type=one_of(names), metavar="VIEW",
        help="one table in full: line, module, op, phase or category",
    )  # fmt: skip
    add_columns(parser)
    parser.add_argument(
        "--sort", metavar="COLUMN", help="with --by: largest first by this column (flops_change)"
    )
    add_filter(parser)
    parser.add_argument(
        "--top", type=positive_count, metavar="N", help="only the N largest changes"
    )
    add_format(parser, has_html=True)
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Show the changes. Raises TraceFileError for a file that is not a whole trace."""
    from torchtally.report.difference import difference_report
    from torchtally.report.report import table_report
    from torchtally.views.difference import DIFFERENCES

    if args.by is None and (args.filter or args.sort or args.columns):
        raise UsageError("--filter, --sort and --columns need one table: add --by line, for one.")
    before, after = ledger_of(args.before), ledger_of(args.after)
    if args.by is None:
        write_report(difference_report(before, after, args.top), args)
    else:
        table = chosen(DIFFERENCES[args.by](before, after), args)
        write_report(table_report(table), args)
    return 0


def ledger_of(file: str) -> "Ledger":
    from torchtally.ledger import account
    from torchtally.timing.targets import known_roofline
    from torchtally.trace import Trace
    from torchtally.trace.peers import load_peers

    trace = Trace.load(file)
    return account(trace, roofline=known_roofline(trace.chip), peers=load_peers(trace, file))

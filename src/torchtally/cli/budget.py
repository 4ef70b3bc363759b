"""`tally budget`: a file of budgets, and its history in the repository."""

import argparse

from torchtally.cli.arguments import Subparsers
from torchtally.cli.output import add_format, write_report

NAME = "budget"
SUMMARY = "show a file of budgets, and how each changed from commit to commit"

EPILOG = """\
examples:
  tally run train.py --budget budgets.toml --update     writes the file
  tally run train.py --budget budgets.toml              holds a run to it
  tally budget budgets.toml                             shows it, and its history
  tally budget budgets.toml --format markdown

The history is that of git: every commit that changed the figures of a run.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Show what runs may take, and the commits that changed it.",
        epilog=EPILOG,
    )
    parser.add_argument("file", metavar="FILE", help="as `tally run --budget FILE --update` writes")
    add_format(parser, has_html=True)
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Show the budgets. Raises UsageError for a file that has none."""
    from torchtally.gates.budget import BudgetFile
    from torchtally.gates.history import history
    from torchtally.report.budget import budget_report

    file = BudgetFile.load(args.file)
    write_report(budget_report(file, history(args.file)), args)
    return 0

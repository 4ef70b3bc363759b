"""`tally budget`: a file of budgets, and its history in the repository."""

from dataclasses import dataclass

from torchtally.cli.output import PageOptions, write_report
from torchtally.options import FILE, own

SUMMARY = "show a file of budgets, and how each changed from commit to commit"

EPILOG = """\
examples:
  tally run train.py --budget budgets.toml --update     writes the file
  tally run train.py --budget budgets.toml              holds a run to it
  tally budget budgets.toml                             shows it, and its history
  tally budget budgets.toml --format markdown

The history is that of git: every commit that changed the figures of a run.
"""


@dataclass(frozen=True, kw_only=True)
class BudgetOptions(PageOptions):
    """Show what runs may take, and the commits that changed it."""

    file: str = own("FILE", "as `tally run --budget FILE --update` writes", FILE)


def command(options: BudgetOptions) -> int:
    """Show the budgets. Raises UsageError for a file that has none."""
    from torchtally.gates.budget import BudgetFile
    from torchtally.gates.history import history
    from torchtally.report.budget import budget_report

    file = BudgetFile.load(options.file)
    write_report(budget_report(file, history(options.file)), options)
    return 0

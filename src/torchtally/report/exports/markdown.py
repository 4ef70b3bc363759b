"""The page about the run in Markdown: what `tally show --format markdown` prints, marked as
ours.
"""

from torchtally.ledger import Ledger
from torchtally.report.exports import Exported, Wanted
from torchtally.report.formats import render
from torchtally.report.report import Look
from torchtally.report.whole_run import run_report

SUMMARY = "the page about the run, for an issue or a pull request"
SUFFIX = ".md"


def export(ledger: Ledger, wanted: Wanted) -> Exported:
    """One text."""
    text = render(run_report(ledger), "markdown", Look())
    return Exported({"": f"<!-- torchtally -->\n{text}"})

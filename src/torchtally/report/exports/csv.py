"""Every operator call of the step as a row of comma-separated values."""

from torchtally.ledger import Ledger
from torchtally.report.exports import Exported, Wanted
from torchtally.report.formats import render
from torchtally.report.report import Look, table_report
from torchtally.views.operator_calls import operator_calls

SUMMARY = "one row per operator call of the step, with everything known about it"
SUFFIX = ".csv"


def export(ledger: Ledger, wanted: Wanted) -> Exported:
    """One text: the names of the columns, then the rows. What is unknown is empty."""
    return Exported({"": render(table_report(operator_calls(ledger)), "csv", Look())})

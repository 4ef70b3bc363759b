"""What `print` and a notebook show of a table, a ledger and others: see `torchtally.shown`."""

from torchtally.ledger import Ledger
from torchtally.report.number_formats import comparison_html, comparison_text
from torchtally.report.page import element, joined, table_html
from torchtally.report.terminal import table_text
from torchtally.report.text import model_facts, model_text, summary_text, verdict
from torchtally.table import Table
from torchtally.views.model_summary import ModelSummary
from torchtally.views.number_formats import FormatComparison
from torchtally.views.summary import summarise

MOST_ROWS = 20
"""Of each table in a notebook."""


def text(value: Table | Ledger | ModelSummary | FormatComparison) -> str:
    """A table, or what `tally dtypes`, `tally summary` or, of a ledger, `tally show` prints."""
    if isinstance(value, FormatComparison):
        return comparison_text(value)
    if isinstance(value, ModelSummary):
        return model_text(value, value.table())
    return table_text(value) if isinstance(value, Table) else summary_text(summarise(value))


def html(value: Table | Ledger | ModelSummary | FormatComparison) -> str:
    """The same as HTML: escaped, without scripts, styles or links."""
    if isinstance(value, FormatComparison):
        return comparison_html(value)
    if isinstance(value, ModelSummary):
        sentences = (verdict(value.verdict), *model_facts(value))
        return joined([*(element("p", text) for text in sentences), table_html(value.table())])
    if isinstance(value, Table):
        return table_html(value.top(MOST_ROWS))
    summary = summarise(value)
    tables = (summary.phases, summary.categories, summary.lines, summary.modules)
    shown = (table_html(table.top(MOST_ROWS)) for table in tables if table and table.rows)
    return joined([element("p", verdict(summary.verdict)), *shown])

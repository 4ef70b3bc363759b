"""What `print` and a notebook show of tables, ledgers and others: see `torchtally.table.shown`.

Each becomes a report, which the formats of commands render, and `notebook` for a notebook.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from torchtally.gates import Findings
from torchtally.ledger import Ledger
from torchtally.plan.questions import Answer
from torchtally.report.answer import answer_report
from torchtally.report.formats import render
from torchtally.report.gates import findings_report
from torchtally.report.model import model_report
from torchtally.report.notebook import MOST_ROWS, report_html
from torchtally.report.number_formats import comparison_report
from torchtally.report.report import Look, Report, table_report
from torchtally.report.tensor_numbers import tensor_numbers_report
from torchtally.report.text import closing_sentences, opening_sentences, summary_text
from torchtally.report.trace import trace_report
from torchtally.table import Table, Tabular
from torchtally.trace import Trace
from torchtally.views.model_summary import ModelSummary
from torchtally.views.number_formats import FormatComparison
from torchtally.views.summary import Summary, summarise
from torchtally.views.tensor_numbers import TensorNumbers


def text(value: Any) -> str:
    """A table, or what a command prints of its like."""
    return render(report_of(value), "text", Look())


def html(value: Any) -> str:
    """The same for a notebook: escaped, without scripts or links."""
    return str(report_html(report_of(value)))  # marimo writes subclasses of str as nothing


def markdown(value: Any) -> str:
    """The same as Markdown, with as many rows as a notebook has."""
    report = report_of(value)
    tables = tuple((name, table.top(MOST_ROWS)) for name, table in report.tables)
    return render(replace(report, tables=tables), "markdown", Look())


def report_of(value: Any) -> Report:
    """What is said of a value, once for all forms."""
    if isinstance(value, Report):
        return value
    make = next(make for kind, make in REPORTS.items() if isinstance(value, kind))
    return make(value)


def ledger_overview(ledger: Ledger) -> Report:
    """The one-page report of a run."""
    summary = summarise(ledger)
    title, *sentences = opening_sentences(summary)
    return Report(
        title=title,
        facts=tuple(sentences),
        tables=tuple((str(n), table) for n, table in enumerate(_tables(summary))),
        remarks=closing_sentences(summary),
        text=partial(_summary_text, summary),
    )


def _tables(summary: Summary) -> list[Table]:
    """The dearest lines first, since a notebook folds what comes later."""
    holders = None if summary.shortage is None else summary.shortage.holders
    tables = (
        holders, summary.lines, summary.peak_lines, summary.library_lines, summary.categories,
        summary.modules, summary.phases, summary.run_steps,
    )  # fmt: skip
    return [table for table in tables if table is not None and table.rows]


def _summary_text(summary: Summary, look: Look) -> str:
    return summary_text(summary, width=look.width, is_coloured=look.is_coloured)


REPORTS: dict[type, Callable[[Any], Report]] = {
    Table: table_report,
    Tabular: lambda value: table_report(value.table()),
    Ledger: ledger_overview,
    Trace: trace_report,
    ModelSummary: model_report,
    FormatComparison: comparison_report,
    TensorNumbers: tensor_numbers_report,
    Answer: answer_report,
    Findings: findings_report,
}

"""Markdown for issues, pull requests and notes."""

from collections.abc import Iterable, Iterator

from torchtally.progress import printable
from torchtally.report.grid import cell_text, text_first, totals_text
from torchtally.report.plain import LIMIT
from torchtally.report.plot import plot_text
from torchtally.report.prose import in_words, remarks
from torchtally.report.report import Look, Report
from torchtally.table import Table

SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_{}[]<>|#~$!&"})
"""What Markdown or HTML would read as markup. Names come from strangers."""


def render(report: Report, look: Look) -> str:
    """The title, the facts, plots as code blocks, tables as pipe tables."""
    return "".join(f"{line}\n" for line in _lines(report, look))


def _lines(report: Report, look: Look) -> Iterator[str]:
    yield f"# {_escape(report.title)}"
    for fact in report.facts:
        yield ""
        yield _escape(fact)
    for plot in report.plots:
        yield from ("", "```text", *plot_text(plot, is_ascii=look.is_ascii).splitlines(), "```")
    for _, table in report.tables:
        yield ""
        yield from _table(table.for_readers())
    for remark in report.remarks:
        yield ""
        yield _escape(remark)
    if not report.tables and report.text is not None:
        yield from ("", "```text", *report.text(Look()).replace("`", "'").splitlines(), "```")


def _table(table: Table) -> Iterator[str]:
    order = text_first(table)
    columns = [table.columns[place] for place in order]
    yield f"## {_escape(in_words(table.title))}"
    yield ""
    yield _row(column.title for column in columns)
    yield _row(":---" if column.unit.is_text else "---:" for column in columns)
    for row in table.rows:
        cells = zip((row[place] for place in order), columns, strict=True)
        yield _row(_escape(cell_text(cell, column.unit)) for cell, column in cells)
    if any(cell is not None for cell in table.totals):
        yield _row(f"**{text}**" if text else "" for text in totals_text(table, order))
    if text := remarks(table):
        yield ""
        yield _escape(text)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    return printable(text[:LIMIT]).translate(SPECIAL)

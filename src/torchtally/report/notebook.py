"""Reports within a notebook: static HTML whose style touches nothing outside of it.

Notebooks have themes, and each its own way to say which: `data-jp-theme-light` (JupyterLab),
`vscode-dark` (VS Code), `.dark` (marimo), `theme=dark` (Colab). All of them set the colour of text,
so every colour here is made from that one. Where a style is taken away (GitHub), plain tables stay.
"""

from collections.abc import Iterator, Sequence

from torchtally.report.page import (
    BARS,
    Html,
    element,
    grid_html,
    join,
    plot_html,
    preformatted_element,
)
from torchtally.report.prose import in_words
from torchtally.report.report import Look, Report
from torchtally.report.style import style
from torchtally.table import Table

MOST_ROWS = 20
"""Of each table."""
OPEN_TABLES = 2
"""The tables behind them are folded."""
MOST_LETTERS = 40_000
"""Of the HTML, about: a notebook keeps all of it in its file."""

STYLE = style("notebook") + "".join(
    f".tally.tally .bar-{bar} {{ background: linear-gradient(to right, "
    f"var(--bar) {bar / BARS:.0%}, transparent 0); }}\n"
    for bar in range(1, BARS + 1)
)
"""The class twice: more weight than a notebook's own rules for tables have."""


def report_html(report: Report) -> Html:
    """The title, the facts, plots and the first rows of every table; without scripts or links."""
    tables = [table for _, table in report.tables]
    title = report.title if [report.title] != [in_words(table.title) for table in tables] else ""
    return element(
        "div",
        element("style", Html(STYLE)),
        *([element("p", title, class_="title")] if title else []),
        *(element("p", fact) for fact in report.facts),
        *(_fold(plot.title, [plot_html(plot)]) for plot in report.plots),
        join(_tables(tables)),
        *preformatted_text(report),
        *_remarks(report.remarks),
        class_="tally",
    )


def _tables(tables: Sequence[Table]) -> Iterator[Html]:
    """Each with its rows as far as there is room for all of them; at least its title and totals."""
    letters = 0
    for number, table in enumerate(tables):
        count = MOST_ROWS if letters < MOST_LETTERS else 0
        part = join(grid_html(table.top(count), bars=bar_column(table)))
        letters += len(part)
        yield _fold(in_words(table.title), [part], is_open=number < OPEN_TABLES)


def bar_column(table: Table) -> int | None:
    """The place of the first column whose cells are shares of a total; None where there is none."""
    for place, (column, total) in enumerate(zip(table.columns, table.totals, strict=True)):
        if not column.unit.is_text and isinstance(total, int | float) and total > 0:
            return place
    return None


def preformatted_text(report: Report) -> Iterator[Html]:
    """HTML of a report that is nothing but text below its facts."""
    if report.text is not None and not report.tables and not report.plots:
        yield preformatted_element(report.text(Look()))


def _remarks(remarks: Sequence[str]) -> Iterator[Html]:
    if remarks:
        yield _fold("What is counted, assumed or unknown", [element("p", each) for each in remarks])


def _fold(title: str, children: Sequence[Html], *, is_open: bool = False) -> Html:
    attributes = {"open": "open"} if is_open else {}
    return element("details", element("summary", title), *children, **attributes)

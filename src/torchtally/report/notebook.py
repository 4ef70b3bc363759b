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
from torchtally.table import Table

MOST_ROWS = 20
"""Of each table."""
OPEN_TABLES = 2
"""The tables behind them are folded."""
MOST_LETTERS = 40_000
"""Of the HTML, about: a notebook keeps all of it in its file."""

STYLE = """
.tally.tally { font-size: .9rem; line-height: 1.45; color: inherit;
  --rule: color-mix(in srgb, currentColor 22%, transparent);
  --stripe: color-mix(in srgb, currentColor 5%, transparent);
  --bar: color-mix(in srgb, #2f7fd6 34%, transparent);
  --series-0: #2a9d5c; --series-1: #2f7fd6; --series-2: #c2549c; --series-3: #c96f1c; }
.tally.tally p { margin: .15rem 0; max-width: 60rem; opacity: .78; overflow-wrap: anywhere; }
.tally.tally p.title { font-weight: 600; opacity: 1; }
.tally.tally details { margin: .5rem 0 0; }
.tally.tally summary { cursor: pointer; font-weight: 600; }
.tally.tally .wide { overflow-x: auto; margin: .2rem 0; }
.tally.tally table { border-collapse: collapse; border: 0; margin: 0; font-size: .85rem;
  font-variant-numeric: tabular-nums; color: inherit; width: auto; }
.tally.tally tr, .tally.tally th, .tally.tally td { background: none; border: 0; color: inherit; }
.tally.tally th, .tally.tally td { padding: .18rem .6rem; text-align: left; white-space: nowrap;
  max-width: 26rem; overflow: hidden; text-overflow: ellipsis; }
.tally.tally th { font-weight: 500; opacity: .78; border-bottom: 1px solid var(--rule); }
.tally.tally tbody tr:nth-child(even) { background: var(--stripe); }
.tally.tally tfoot td { font-weight: 600; border-top: 1px solid var(--rule); }
.tally.tally .number { text-align: right; }
.tally.tally .code { font-family: ui-monospace, monospace; white-space: pre; }
.tally.tally pre { font: .8rem/1.35 ui-monospace, monospace; margin: .3rem 0; overflow-x: auto;
  background: none; color: inherit; border: 0; padding: 0; white-space: pre; }
.tally.tally figure { margin: .5rem 0; }
.tally.tally svg { max-width: 44rem; width: 100%; height: auto; }
.tally.tally svg text { font-size: 13px; fill: currentColor; }
.tally.tally svg .letter { font-weight: 700; text-anchor: middle; dominant-baseline: central; }
.tally.tally svg .end { text-anchor: end; }
.tally.tally svg .middle { text-anchor: middle; }
.tally.tally svg .grid { stroke: var(--rule); }
.tally.tally svg .axis { stroke: currentColor; }
.tally.tally svg .curve { fill: none; stroke: currentColor; stroke-width: 2; }
.tally.tally svg .achieved, .tally.tally svg .estimated { stroke-dasharray: 6 5; opacity: .7; }
.tally.tally svg .mark { fill-opacity: .45; }
.tally.tally .series-0 { fill: var(--series-0); stroke: var(--series-0); }
.tally.tally .series-1 { fill: var(--series-1); stroke: var(--series-1); }
.tally.tally .series-2 { fill: var(--series-2); stroke: var(--series-2); }
.tally.tally .series-3 { fill: var(--series-3); stroke: var(--series-3); }
.tally.tally svg .curve[class*="series"] { fill: none; }
.tally.tally .key { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 0 1.2rem; }
.tally.tally .key svg { display: inline-block; width: 1.6rem; height: .9rem; }
"""
STYLE += "".join(
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

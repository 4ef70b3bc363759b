"""What was measured of a device, as text for a terminal, as a document and as a page."""

from torchtally.report.document import SCHEMA_VERSION, Document, rows_of
from torchtally.report.html import page
from torchtally.report.plot import plot_text
from torchtally.report.terminal import table_text
from torchtally.views.bench import Bench

MOST_ROWS = 12
"""Of a table on a terminal; documents and pages have all of them."""


def bench_text(
    view: Bench, *, width: int = 80, is_coloured: bool = False, is_ascii: bool = False
) -> str:
    """The plot, then every table."""
    parts = [plot_text(view.plot, width=width, is_coloured=is_coloured, is_ascii=is_ascii)]
    for _, table in view.tables:
        parts.append(table_text(table.top(MOST_ROWS), width=width, is_coloured=is_coloured))
    return "\n".join(parts)


def bench_document(view: Bench) -> Document:
    """Every table, its rows by the names of their columns."""
    return {
        "schema_version": SCHEMA_VERSION,
        "title": view.title,
        **{name: rows_of(table) for name, table in view.tables},
    }


def bench_page(view: Bench) -> str:
    """The same for a browser."""
    tables = [table for _, table in view.tables]
    return page(view.title, facts=(), plots=[view.plot], tables=tables)

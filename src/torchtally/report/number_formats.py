"""Number formats, and what values become in them, for a terminal, a notebook and programs."""

from collections.abc import Iterator
from functools import partial

from torchtally.chips import known_chips
from torchtally.report.documents.formats import formats_document
from torchtally.report.grid import INDENT, wrap
from torchtally.report.report import Look, Report
from torchtally.report.terminal import table_text
from torchtally.table import Table
from torchtally.views.number_formats import (
    FormatComparison,
    becomes,
    bits,
    layouts,
    overview,
    ranges,
    uses,
)

MOST_COLUMNS = 4
"""Values side by side that 80 columns hold."""


def comparison_report(comparison: FormatComparison) -> Report:
    """The formats and what the values become, or, of values that were given, that alone."""
    return Report(
        title="Number formats",
        tables=tuple(_tables(comparison)),
        text=partial(comparison_text, comparison),
        document=partial(formats_document, comparison),
    )


def comparison_text(comparison: FormatComparison, look: Look | None = None) -> str:
    """Tables; uses as paragraphs, which a table would cut."""
    look = look or Look()
    parts = [
        _paragraphs(table, look.width)
        if name == "uses"
        else table_text(table, width=look.width, is_coloured=look.is_coloured)
        for name, table in _tables(comparison)
    ]
    return "\n".join(parts)


def _tables(comparison: FormatComparison) -> Iterator[tuple[str, Table]]:
    if comparison.is_overview:
        yield "layouts", layouts(comparison.formats)
        yield "ranges", ranges(comparison.formats)
        yield "values", overview(comparison)
        yield "uses", uses(comparison.formats, known_chips())
        return
    if 1 < len(comparison.texts) <= MOST_COLUMNS:
        yield "values", overview(comparison)
    for place in range(len(comparison.texts)):
        yield f"value_{place + 1}", becomes(comparison, place)
        yield f"bits_{place + 1}", bits(comparison, place)


def _paragraphs(table: Table, width: int) -> str:
    lines = [str(table.title)]
    for name, use, chips, note in table.rows:
        remark = f"; {note}" if note else ""
        text = f"{name}: {use}{remark}. Chips: {chips or 'none of the table'}."
        first, *rest = wrap(text, width - len(INDENT))
        lines += [first, *(f"{INDENT}{line}" for line in rest)]
    return "".join(f"{line}\n" for line in lines)

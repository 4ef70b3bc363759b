"""Number formats, and what values become in them, for a terminal, a notebook and programs."""

import math
from collections.abc import Iterator, Sequence
from functools import partial

from torchtally.chips import Chip, known_chips
from torchtally.number_formats import Conversion, FloatLayout, NumberFormat
from torchtally.report.document import Document
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
        schema="formats",
        title="Number formats",
        tables=tuple(_tables(comparison)),
        text=partial(comparison_text, comparison),
        document=partial(comparison_document, comparison),
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


def comparison_document(comparison: FormatComparison) -> Document:
    """All of it by name; inf and NaN as texts, which JSON has no numbers for."""
    chips = known_chips()
    return {
        "formats": [_format(row, chips) for row in comparison.formats],
        "values": [
            {
                "text": text,
                "becomes": {
                    row.name: _conversion(column[place])
                    for row, column in zip(comparison.formats, comparison.conversions, strict=True)
                },
            }
            for place, text in enumerate(comparison.texts)
        ],
    }


def _format(row: NumberFormat, chips: Sequence[Chip]) -> Document:
    layout = row.layout
    numbers = ("largest", "smallest_normal", "smallest_subnormal", "spacing_at_one")
    return {
        "name": row.name,
        "torch_name": row.torch_name or None,
        "bits_per_number": row.bits_per_number,
        "bits": row.letters,
        "bias": layout.bias if isinstance(layout, FloatLayout) else None,
        **{name: _float(getattr(layout, name)) for name in numbers},
        "block_size": row.blocks.size if row.blocks else None,
        "scale_width": sum(row.blocks.widths) if row.blocks else None,
        "use": row.use,
        "note": row.note,
        "source": row.source,
        "computed_by": [chip.name for chip in chips if row.is_computed_by(chip)],
    }


def _conversion(conversion: Conversion) -> Document:
    return {
        "value": _float(conversion.value),
        "error": conversion.error,
        "spacing": conversion.spacing,
        "outcome": conversion.outcome.value,
        "bits": conversion.bits,
        "scale": _float(conversion.scale),
        "scale_bits": conversion.scale_bits,
    }


def _float(number: object) -> float | str | None:
    if number is None:
        return None
    value = float(number)  # type: ignore[arg-type]
    return value if math.isfinite(value) else str(value)

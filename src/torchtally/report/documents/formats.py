"""Formats of numbers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from msgspec import field

from torchtally.report.keys import Count, Document, DocumentPart, Mixed, Number, filled, finite, key

if TYPE_CHECKING:
    from torchtally.chips import Chip
    from torchtally.number_formats import Conversion, NumberFormat
    from torchtally.views.number_formats import FormatComparison


class FormatPart(DocumentPart, frozen=True):
    name: str
    torch_name: Annotated[str | None, key("Of a format in torch")]
    bits_per_number: Annotated[Number, key("Of a format, scales included")]
    letters: Annotated[str, key("Of a number, in its format's fields")] = field(name="bits")
    bias: Annotated[Count | None, key("Of the exponent")]
    largest: Number | None
    smallest_normal: Annotated[Number | None, key("Of a format")]
    smallest_subnormal: Annotated[Number | None, key("Of a format")]
    spacing_at_one: Annotated[Number | None, key("Between 1 and a format's next number")]
    block_size: Annotated[Count | None, key("Elements that share a scale")]
    scale_width: Annotated[Count | None, key("Bits of a block's scale")]
    use: str
    note: str
    source: str
    computed_by: Annotated[list[str], key("Chips that compute in a format")]


class ConversionPart(DocumentPart, frozen=True):
    value: Mixed | None
    error: Annotated[Number | None, key("Of a conversion, over the value")]
    spacing: Annotated[Number | None, key("Between a format's neighbouring numbers there")]
    outcome: Annotated[str, key("Of a conversion: exact, rounded, ...")]
    bits: str
    scale: Annotated[Mixed | None, key("Of a block of numbers")]
    scale_bits: Annotated[str | None, key("Of a block's scale, as they lie")]


class ValuePart(DocumentPart, frozen=True):
    text: str
    becomes: Annotated[dict[str, ConversionPart], key("What a value becomes, by format")]


class FormatsDocument(Document, tag="formats/1", frozen=True):
    """Formats of numbers: `tally dtypes`."""

    formats: Annotated[list[FormatPart], key("Of numbers")]
    values: list[ValuePart]


def formats_document(comparison: "FormatComparison") -> FormatsDocument:
    """All of it by name; inf and NaN as texts, which JSON has no numbers for."""
    from torchtally.chips import known_chips

    chips = known_chips()
    columns = list(zip(comparison.formats, comparison.conversions, strict=True))
    return FormatsDocument(
        formats=[_format_part(row, chips) for row in comparison.formats],
        values=[
            ValuePart(text, {row.name: _conversion_part(column[place]) for row, column in columns})
            for place, text in enumerate(comparison.texts)
        ],
    )


def _format_part(row: "NumberFormat", chips: "Sequence[Chip]") -> FormatPart:
    from torchtally.number_formats import FloatLayout

    layout, blocks = row.layout, row.blocks
    names = ("largest", "smallest_normal", "smallest_subnormal", "spacing_at_one")
    numbers = {name: getattr(layout, name) for name in names}
    return filled(
        FormatPart,
        row,
        torch_name=row.torch_name or None,
        bias=layout.bias if isinstance(layout, FloatLayout) else None,
        block_size=blocks.size if blocks else None,
        scale_width=sum(blocks.widths) if blocks else None,
        computed_by=[chip.name for chip in chips if row.is_computed_by(chip)],
        **{name: None if each is None else finite(float(each)) for name, each in numbers.items()},
    )


def _conversion_part(conversion: "Conversion") -> ConversionPart:
    return filled(
        ConversionPart,
        conversion,
        value=finite(conversion.value),
        scale=None if conversion.scale is None else finite(conversion.scale),
    )

"""Number formats side by side: their bits and ranges, and what numbers become in them."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from torchtally.chips import Chip
from torchtally.number_formats import (
    Conversion,
    NumberFormat,
    Real,
    choose_formats,
    convert,
    real_of,
)
from torchtally.table import Cell, Column, Table
from torchtally.table.shown import Shown
from torchtally.units import Unit

USUAL_VALUES = ("1e-8", "0.1", "1/3", "65504")
"""A small gradient or Adam's eps, two numbers that no binary format holds, fp16's largest."""


@dataclass(frozen=True, slots=True)
class FormatComparison(Shown):
    """Values, and what each becomes in each of some formats."""

    formats: tuple[NumberFormat, ...]
    texts: tuple[str, ...]
    """The values, as they were given."""
    reals: tuple[Real, ...]
    conversions: tuple[tuple[Conversion, ...], ...]
    """By format, then by value."""
    is_overview: bool
    """No values were given: the usual ones, as an example."""

    def __repr__(self) -> str:
        return f"<FormatComparison: {', '.join(self.texts)} in {len(self.formats)} formats>"

    def __getitem__(self, name: str) -> tuple[Conversion, ...]:
        """What the values become in the first format of this name, in their order."""
        return self.conversions[self.formats.index(choose_formats([name])[0])]


def dtypes(*values: str | float | Fraction, formats: Sequence[str] = ()) -> FormatComparison:
    """What values become in number formats, and the formats themselves; printed, a table.

        torchtally.dtypes("0.1", "1e-8", formats=["bf16", "fp16"])["bf16"][0].value

    A text is taken exactly ("0.1" is one tenth), a float is what it holds. In formats with blocks
    the values are one tensor and share its scales. Without values, the usual ones.

    Raises UsageError for an unknown format, or a text that is not a number.
    """
    given = values or USUAL_VALUES
    reals = tuple(map(real_of, given))
    rows = choose_formats(formats)
    return FormatComparison(
        formats=rows,
        texts=tuple(map(str, given)),
        reals=reals,
        conversions=tuple(convert(row, reals) for row in rows),
        is_overview=not values,
    )


NAME = Column("format", "format", Unit.NAME)
BITS = (NAME, Column("bits", "bits", Unit.WORD))
RANGES = (
    NAME,
    Column("bits_per_number", "bits", Unit.TIMES),
    Column("parts", "s+e+m", Unit.WORD),
    Column("largest", "largest", Unit.NUMBER),
    Column("smallest_normal", "normal", Unit.TIMES),
    Column("smallest_subnormal", "subnormal", Unit.TIMES),
    Column("spacing_at_one", "at 1", Unit.TIMES),
    Column("block", "block", Unit.COUNT),
)
VALUE = (
    NAME,
    Column("value", "becomes", Unit.VALUE),
    Column("error", "error", Unit.TIMES),
    Column("spacing", "spacing", Unit.NUMBER),
    Column("scale", "scale", Unit.NUMBER),
    Column("outcome", "outcome", Unit.WORD),
)
USES = (
    NAME,
    Column("use", "use", Unit.TEXT),
    Column("computed_by", "chips", Unit.TEXT),
    Column("note", "note", Unit.TEXT),
)


def layouts(formats: Sequence[NumberFormat]) -> Table:
    """The bits of each format, as letters."""
    rows = tuple((row.name, row.letters + _scale_letters(row)) for row in formats)
    return Table("Bits: s sign, e exponent, m mantissa, i integer", BITS, rows)


def _scale_letters(row: NumberFormat) -> str:
    """A scale of three parts is a float; one of a single part is an exponent alone."""
    if row.blocks is None:
        return ""
    widths = row.blocks.widths
    parts = zip("sem" if len(widths) == 3 else "e", widths, strict=True)
    letters = " ".join(letter * width for letter, width in parts)
    return f" x {letters} for {row.blocks.size or 'a row'}"


def ranges(formats: Sequence[NumberFormat]) -> Table:
    """Table from the smallest number of each format to the largest."""
    return Table(
        "Ranges",
        RANGES,
        tuple(map(_range, formats)),
        note="bits: of a number in memory, with its share of a block's scale. normal, subnormal: "
        "the smallest number with full precision, and the smallest of all. at 1: from 1 to "
        "the next number, torch.finfo's eps. block: how many numbers share a scale; the "
        "ranges are those of its elements.",
    )


def _range(row: NumberFormat) -> tuple[Cell, ...]:
    layout = row.layout
    smallest = (layout.smallest_normal, layout.smallest_subnormal)
    return (
        row.name,
        row.bits_per_number,
        "+".join(map(str, layout.widths)),
        float(layout.largest),
        *(None if number is None else float(number) for number in smallest),
        float(layout.spacing_at_one),
        None if row.blocks is None else row.blocks.size,
    )


def _block_notes(comparison: FormatComparison) -> str:
    """What to know of formats with blocks, where there is one."""
    if all(row.blocks is None for row in comparison.formats):
        return ""
    return "Formats with blocks take all values as one tensor: its largest ones set the scales."


def overview(comparison: FormatComparison) -> Table:
    """What all values become, one column each."""
    columns = (
        NAME,
        *(Column(f"value_{n}", text, Unit.VALUE) for n, text in enumerate(comparison.texts, 1)),
    )
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (row.name, *(conversion.value for conversion in conversions))
        for row, conversions in zip(comparison.formats, comparison.conversions, strict=True)
    )
    return Table("What numbers become", columns, rows, note=_block_notes(comparison))


def becomes(comparison: FormatComparison, place: int) -> Table:
    """What the value at this place becomes in each format, and how far that is off."""
    columns = comparison.conversions
    rows = tuple(
        (row.name, held.value, held.error, held.spacing, held.scale, held.outcome.value)
        for row, held in zip(comparison.formats, (column[place] for column in columns), strict=True)
    )
    return Table(
        f"What {comparison.texts[place]} becomes",
        VALUE,
        rows,
        note="error: relative to the number. spacing: to the next number of the format.",
    )


def bits(comparison: FormatComparison, place: int) -> Table:
    """The bits that the value at this place becomes in each format."""
    held = (column[place] for column in comparison.conversions)
    rows = tuple(
        (row.name, conversion.bits if row.blocks is None else _scaled_bits(conversion))
        for row, conversion in zip(comparison.formats, held, strict=True)
    )
    return Table(f"The bits of {comparison.texts[place]}", BITS, rows)


def _scaled_bits(conversion: Conversion) -> str:
    """Bits like "0 1111 101 x 01110011"."""
    return f"{conversion.bits or 'any'} x {conversion.scale_bits}"


def uses(formats: Sequence[NumberFormat], chips: Sequence[Chip]) -> Table:
    """What trainings use each format for, and the architectures that compute in it."""
    return Table(
        "Uses, and architectures of `tally gpus` that compute in it",
        USES,
        tuple(
            (row.name, row.use, ", ".join(architectures(row, chips)), row.note) for row in formats
        ),
    )


def architectures(row: NumberFormat, chips: Sequence[Chip]) -> list[str]:
    """Architectures of the chips that compute in the format, each once: "Hopper", "CDNA3", "Google
    TPU".
    """
    return list(dict.fromkeys(_architecture(chip) for chip in chips if row.is_computed_by(chip)))


def _architecture(chip: Chip) -> str:
    """Architecture without the name of the die; with the vendor, but for NVIDIA and AMD."""
    if chip.vendor in ("NVIDIA", "AMD"):
        return chip.architecture.partition(" ")[0]
    family = chip.architecture.partition(",")[0]
    return family if family.startswith(chip.vendor) else f"{chip.vendor} {family}"

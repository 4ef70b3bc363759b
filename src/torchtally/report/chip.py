"""All that is known of one chip, as plain lines: numbers to the left, their sources numbered below.

Numbers and sources are never cut; what is longer than a line goes on in the next.
"""

import textwrap
from collections.abc import Iterator, Sequence
from functools import partial

from torchtally.chips import Chip
from torchtally.progress import printable
from torchtally.report.documents.chips import chips_document
from torchtally.report.grid import INDENT, wrap
from torchtally.report.report import Report
from torchtally.table import Column, Table
from torchtally.units import FORMATS, Unit
from torchtally.views.chips import Fact, chip_table, facts, origins_of

WIDEST_NUMBER = 14
"""As "989.40 TFLOP/s"."""


def chip_text(chip: Chip, *, width: int = 80) -> str:
    """A page about one chip: names, numbers, what to know about them, and sources."""
    rows = facts(chip)
    numbers = {source: n for n, source in enumerate(dict.fromkeys(fact.source for fact in rows), 1)}
    lines = [*_heading(chip, width), ""]
    for fact in rows:
        lines += _row(fact, numbers[fact.source], width)
    lines += ["", "Rates by which times are predicted"]
    for origin in origins_of(chip):
        lines.append(
            f"{INDENT}{origin.name.ljust(WIDEST_CLASS)}  {_whose(origin.chip, origin.basis)}"
        )
    if chip.note:
        lines += ["", *wrap(chip.note, width)]
    lines += ["", "Sources"]
    for source, number in numbers.items():
        lines += _source(number, source, width)
    return "".join(f"{line}\n" for line in lines)


WIDEST_CLASS = len("products, float4_e2m1fn_x2")
BASES = {"measured": "its own", "sibling": "its sibling's", "design": "of its design"}


def _whose(name: str, basis: str) -> str:
    """Chip on which the constants of a class were measured: "B200, its sibling's"."""
    if not name:
        return "its data sheet, and what chips reach of theirs"
    return f"{printable(name)}, {BASES.get(basis, 'as for all chips')}"


FACTS = (
    Column("name", "number", Unit.TEXT),
    Column("value", "value", Unit.WORD),
    Column("note", "note", Unit.TEXT),
    Column("source", "source", Unit.TEXT),
)


def facts_table(chip: Chip) -> Table:
    """Every number of a chip with its source."""
    rows = tuple(
        (fact.name, FORMATS[fact.unit](fact.value), fact.note, fact.source) for fact in facts(chip)
    )
    return Table(chip.name, FACTS, rows, note=chip.note)


def _heading(chip: Chip, width: int) -> Iterator[str]:
    parts = [
        chip.vendor,
        chip.architecture,
        f"compute capability {chip.capability_name}" if chip.is_cuda else "",
        chip.memory_type,
    ]
    yield printable(chip.name)
    yield from wrap(", ".join(part for part in parts if part), width)
    names = [*chip.driver_names, *chip.aliases]
    if names:
        yield from wrap(f"also known as {', '.join(names)}", width)
    for what, sibling in (("measured as", chip.measured_as), ("memory as", chip.memory_as)):
        if sibling is not None:
            yield from wrap(f"{what} {sibling.chip}: {sibling.reason}", width)
    if chip.families:
        yield from wrap(f"taken for {', '.join(chip.families)}", width)


def _row(fact: Fact, number: int, width: int) -> list[str]:
    """The number, what it is, and where it comes from; what a line cannot hold goes below it."""
    room = " " * (WIDEST_NUMBER + 2)
    name = f"{INDENT}{fact.name}" if fact.is_detail else fact.name
    note = f" ({fact.note})" if fact.note else ""
    words = wrap(f"{printable(name.strip())} [{number}]{note}", width - len(room))
    shift = INDENT if fact.is_detail else ""
    words = [f"{shift}{word.removeprefix(INDENT)}" for word in words]
    value = FORMATS[fact.unit](fact.value).rjust(WIDEST_NUMBER)
    return [f"{INDENT}{value}  {words[0]}", *(f"{INDENT}{room}{word}" for word in words[1:])]


def _source(number: int, source: str, width: int) -> list[str]:
    """An address stays whole where a line can hold it."""
    head = f"{INDENT}[{number}] "
    return textwrap.wrap(
        printable(source),
        max(width, 2 * len(head)),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
    )


def chips_report(chips: Sequence[Chip], columns: Sequence[str] | None = None) -> Report:
    """Chips side by side, of some columns alone. Raises UsageError for unknown ones."""
    table = chip_table(chips)
    return Report(
        title="Chips",
        tables=(("chips", table if columns is None else table.only(columns)),),
        document=partial(chips_document, chips),
    )


def chip_report(chip: Chip) -> Report:
    """All that is known of one chip, each number with its source."""
    return Report(
        title=chip.name,
        tables=(("facts", facts_table(chip)),),
        text=lambda look: chip_text(chip, width=look.width),
        document=partial(chips_document, (chip,)),
    )

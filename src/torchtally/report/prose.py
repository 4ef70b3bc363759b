"""Sentences with numbers in them, as text."""

from typing import TYPE_CHECKING

from torchtally.table import Prose, Table
from torchtally.units import format_number

if TYPE_CHECKING:
    from torchtally.plan.quantity import Quantity


def in_words(prose: "Prose | tuple[str | Quantity, ...]") -> str:
    """A sentence with its numbers, each in its unit."""
    parts = (prose,) if isinstance(prose, str) else prose
    return "".join(
        part if isinstance(part, str) else format_number(part.value, part.unit) for part in parts
    )


def remarks(table: Table, option: str = "") -> str:
    """How many rows were left out, by which option they are shown, and the note."""
    more = f"{table.left_out} more row{'s' * (table.left_out > 1)}{option}." * (table.left_out > 0)
    notes = (column.note for column in table.columns if not column.on_request)
    return " ".join(filter(None, (more, in_words(table.note), *notes)))

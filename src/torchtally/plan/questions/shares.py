"""The table of what holds a chip's memory, which every question about memory shows."""

from collections.abc import Iterable

from torchtally.plan.quantity import Quantity
from torchtally.table import Column, Table
from torchtally.units import Unit


def memory_by_category(
    title: str, parts: Iterable[tuple[str, Quantity, str]], whole: float
) -> Table:
    """Each part (its name, bytes and a note) beside its share, the largest first."""
    rows = sorted(parts, key=lambda part: -part[1].value)
    return Table(
        title=title,
        columns=(
            Column("category", "category", Unit.NAME),
            Column("bytes", "memory", Unit.BYTES),
            Column("bytes_share", "share", Unit.FRACTION),
            Column("note", "what", Unit.TEXT, rank=1),
        ),
        rows=tuple(
            (name, bytes_.value, bytes_.value / whole, note)
            for name, bytes_, note in rows
            if bytes_.value
        ),
        totals=(None, whole, 1.0, None),
    )

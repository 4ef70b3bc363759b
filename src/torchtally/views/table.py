"""A finished view: rows and columns whose numbers a renderer only has to format."""

from dataclasses import dataclass, replace
from enum import StrEnum

Cell = str | int | float | None
"""A text, a number in the unit of its column, or nothing."""


class Unit(StrEnum):
    """What a column's cells are. A renderer picks the prefix (GiB, TFLOPs) and the alignment."""

    FLOPS = "FLOPs"
    BYTES = "bytes"
    COUNT = "count"
    FRACTION = "fraction"
    BYTE_PER_S = "bytes/s"
    FLOP_PER_S = "FLOP/s"
    USD = "USD"
    NAME = "name"
    """A short name of our own: stands first and is never cut."""
    PLACE = "place"
    """A path, possibly with a line number: the end says most."""
    TEXT = "text"
    """Source code or a name: the beginning says most."""

    @property
    def is_text(self) -> bool:
        return self in (Unit.NAME, Unit.PLACE, Unit.TEXT)


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    """Unique in its table; the key in JSON."""
    title: str
    unit: Unit
    rank: int = 0
    """Where there is no room, columns of the highest rank are left out first; rank 0 never is."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows, most expensive first. Where a column adds up, `totals` holds its sum over all rows."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    totals: tuple[Cell, ...]
    """One cell for each column: of the rows shown and of those left out."""
    left_out: int = 0
    """Rows that were cut by `top`."""
    note: str = ""
    """What a reader must know to read the numbers right."""

    def column(self, name: str) -> tuple[Cell, ...]:
        """The cells of a column, top to bottom. Raises StopIteration for an unknown one."""
        place = next(n for n, column in enumerate(self.columns) if column.name == name)
        return tuple(row[place] for row in self.rows)

    def total(self, name: str) -> Cell:
        place = next(n for n, column in enumerate(self.columns) if column.name == name)
        return self.totals[place]

    def top(self, count: int | None) -> "Table":
        """The first rows; the totals stay those of all rows."""
        if count is None or len(self.rows) <= count:
            return self
        left_out = self.left_out + len(self.rows) - count
        return replace(self, rows=self.rows[:count], left_out=left_out)

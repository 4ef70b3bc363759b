"""A finished view: rows and columns whose numbers a renderer only has to format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchtally.errors import UsageError, did_you_mean
from torchtally.table.shown import Shown
from torchtally.units import Unit

Cell = str | int | float | None
"""A text, a number in the unit of its column, or nothing."""


class LinePlace(str):
    """A line of code as a table shows it ("train.py:41"), and what documents say of it."""

    file: str
    """Its path as it was recorded, which the shown one may be the end of."""
    line: int

    def __new__(cls, shown: str, file: str, line: int) -> "LinePlace":
        place = super().__new__(cls, shown)
        place.file, place.line = file, line
        return place


@dataclass(frozen=True, slots=True)
class Number:
    """A number within a sentence, for a renderer to format."""

    value: int | float
    unit: Unit


Prose = str | tuple[str | Number, ...]
"""A text, or its parts where there are numbers in it."""


def sentences(*parts: Prose) -> Prose:
    """One text of several, with a space between them."""
    flat: list[str | Number] = []
    for part in parts:
        flat += [" "] if flat else []
        flat += [part] if isinstance(part, str) else part
    texts = [piece for piece in flat if isinstance(piece, str)]
    return "".join(texts) if len(texts) == len(flat) else tuple(flat)


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    """Unique in its table; the key in JSON."""
    title: str
    unit: Unit
    rank: int = 0
    """In a narrow terminal, columns of the highest rank are hidden first; rank 0 never is."""
    on_request: bool = False
    """For programs (JSON, CSV); for readers where they ask for it by its name."""
    note: str = ""
    """What is needed to read its numbers right, said where it is shown."""

    def answers_to(self, word: str) -> bool:
        """Whether a user who types this word means the column: its name, or what its header shows.

        Case, spaces, hyphens and underscores do not matter: "of FLOPs" is of-flops.
        """
        return _letters(word) in (_letters(self.name), _letters(self.title))


@dataclass(frozen=True, slots=True)
class Table(Shown):
    """Rows, most expensive first. Where a column adds up, `totals` holds its sum over all rows."""

    title: Prose
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    totals: tuple[Cell, ...] = ()
    """One cell for each column: of the rows shown and of those left out. Where none is given, no
    column adds up.
    """
    left_out: int = 0
    """Rows that were cut by `top`."""
    filtered_out: int = 0
    """Rows that conditions left out; the note says which."""
    note: Prose = ""
    """What is needed to read the numbers right."""

    def __post_init__(self) -> None:
        if not self.totals:
            object.__setattr__(self, "totals", (None,) * len(self.columns))

    def __repr__(self) -> str:
        return f"<Table {self.title!r}: {len(self.rows)} rows of {len(self.columns)} columns>"

    def column(self, name: str) -> tuple[Cell, ...]:
        """The cells of a column, top to bottom. Raises UsageError for an unknown one."""
        place = self.place_of(name)
        return tuple(row[place] for row in self.rows)

    def total(self, name: str) -> Cell:
        return self.totals[self.place_of(name)]

    def sorted_by(self, name: str) -> "Table":
        """Largest first by a column of numbers. Raises UsageError for any other column."""
        place = self.place_of(name)
        if self.columns[place].unit.is_text:
            raise UsageError(f"{name!r} is a column of text, not of numbers. {self._numbers}")

        def largest_first(row: tuple[Cell, ...]) -> float:
            cell = row[place]
            return -cell if isinstance(cell, int | float) else 0

        return replace(self, rows=tuple(sorted(self.rows, key=largest_first)))

    def place_of(self, name: str) -> int:
        """The index of a column by its name, else by its header. Raises UsageError for none."""
        names = [column.name for column in self.columns]
        if name in names:
            return names.index(name)
        for place, column in enumerate(self.columns):
            if column.answers_to(name):
                return place
        raise UsageError(f"This view has no column {name!r}. {did_you_mean(name, names)}")

    @property
    def _numbers(self) -> str:
        names = [column.name for column in self.columns if not column.unit.is_text]
        return f"Its numbers are: {', '.join(names)}."

    def only(self, names: Sequence[str]) -> "Table":
        """These columns in this order, which all must be shown; without naming one, texts too.

        Raises UsageError for an unknown one.
        """
        places = [self.place_of(name) for name in names]
        if not any(self.columns[place].unit.is_text for place in places):
            places += [place for place, column in enumerate(self.columns) if column.unit.is_text]
        return replace(
            self,
            columns=tuple(
                replace(self.columns[place], rank=0, on_request=False) for place in places
            ),
            rows=tuple(tuple(row[place] for place in places) for row in self.rows),
            totals=tuple(self.totals[place] for place in places),
        )

    def for_readers(self) -> "Table":
        """The table without the columns that nobody has asked for."""
        if not any(column.on_request for column in self.columns):
            return self
        shown = [place for place, column in enumerate(self.columns) if not column.on_request]
        return replace(
            self,
            columns=tuple(self.columns[place] for place in shown),
            rows=tuple(tuple(row[place] for place in shown) for row in self.rows),
            totals=tuple(self.totals[place] for place in shown),
        )

    def with_some_of(self, names: Sequence[str]) -> "Table":
        """`only` those of these columns that it has; the table as it is where it has none."""
        mine = [name for name in names if any(each.answers_to(name) for each in self.columns)]
        return self.only(mine) if mine else self

    def top(self, count: int | None) -> "Table":
        """The first rows; the totals stay those of all rows."""
        if count is None or len(self.rows) <= count:
            return self
        left_out = self.left_out + len(self.rows) - count
        return replace(self, rows=self.rows[:count], left_out=left_out)


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character not in " -_")


class Tabular(Shown):
    """An object that is shown as one table."""

    __slots__ = ()

    def table(self) -> Table:
        """What there is to see of it now."""
        raise NotImplementedError


XY = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """The points of one letter."""

    letter: str
    points: tuple[XY, ...]
    name: str = ""
    is_joined: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Series over one axis; the first are drawn on top."""

    title: str
    x_title: str
    series: tuple[Series, ...]
    x_is_whole: bool = False
    marks: Mapping[str, str] = field(default_factory=dict)
    """Letters of runs, by name."""
    note: str = ""

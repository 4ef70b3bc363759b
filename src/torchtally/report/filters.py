"""Rows of a table by conditions on its columns, as --filter takes them.

flops>1e9      bytes_saved>=1GiB      phase=backward      line~train.py      operator!~foreach
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import Any

from torchtally.errors import UsageError
from torchtally.gates.limits import amount_of
from torchtally.table import Cell, Column, Number, Prose, Table, sentences
from torchtally.units import Unit

FORM = re.compile(r"\s*(?P<column>[\w.-]+)\s*(?P<relation>!~|!=|>=|<=|~|=|>|<)(?P<value>.*)", re.S)
EXAMPLES = "flops>1e9, bytes_saved>=1GiB, phase=backward, line~train.py, operator!~foreach"

OF_NUMBERS: dict[str, Callable[[Any, Any], bool]] = {
    ">": lambda cell, amount: cell > amount,
    ">=": lambda cell, amount: cell >= amount,
    "<": lambda cell, amount: cell < amount,
    "<=": lambda cell, amount: cell <= amount,
    "=": lambda cell, amount: cell == amount,
    "!=": lambda cell, amount: cell != amount,
}
OF_TEXTS: dict[str, Callable[[str, str], bool]] = {
    "=": lambda cell, text: cell.lower() == text.lower(),
    "!=": lambda cell, text: cell.lower() != text.lower(),
    "~": lambda cell, text: text.lower() in cell.lower(),
    "!~": lambda cell, text: text.lower() not in cell.lower(),
}


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A condition on one column. A number that is unknown meets none; case does not matter."""

    text: str
    """As it was given."""
    column: str
    relation: str
    value: str

    def holds(self, column: Column) -> Callable[[Cell], bool]:
        """Condition for a cell of this column. Raises UsageError where the two do not go
        together.
        """
        if column.unit.is_text:
            compare = self._comparison(OF_TEXTS, f"{self.column} is a column of text")
            return lambda cell: compare(str(cell or ""), self.value)
        compare = self._comparison(OF_NUMBERS, f"{self.column} is a column of numbers")
        amount = self._amount(column.unit)
        return lambda cell: isinstance(cell, int | float) and compare(cell, amount)

    def _comparison(
        self, comparisons: dict[str, Callable[[Any, Any], bool]], what: str
    ) -> Callable[[Any, Any], bool]:
        if self.relation not in comparisons:
            raise UsageError(f"--filter {self.text!r}: {what}. Use {', '.join(comparisons)}.")
        return comparisons[self.relation]

    def _amount(self, unit: Unit) -> float:
        """A plain number in FLOPs, bytes or seconds, or one with its unit."""
        try:
            return float(self.value)
        except ValueError:
            pass
        try:
            return amount_of(self.value, unit)
        except UsageError as error:
            raise UsageError(f"--filter {self.text!r}: {error}") from None


def row_filter(text: str) -> RowFilter:
    """Raises UsageError for what is no condition."""
    match = FORM.fullmatch(text)
    if match is None or not match["value"].strip():
        raise UsageError(f"--filter {text!r} is not a condition. These work: {EXAMPLES}.")
    return RowFilter(text, match["column"], match["relation"], match["value"].strip())


def filter_rows(table: Table, filters: Sequence[RowFilter]) -> Table:
    """The rows for which all conditions hold; totals stay those of all rows, and the note says so.

    Raises UsageError for a column that the table does not have.
    """
    if not filters:
        return table
    rows = table.rows
    for each in filters:
        place = _place(table, each)
        holds = each.holds(table.columns[place])
        rows = tuple(row for row in rows if holds(row[place]))
    hidden = len(table.rows) - len(rows)
    note = _note(table, rows, filters)
    note = sentences(note, table.note) if table.note else note
    return replace(table, rows=rows, filtered_out=table.filtered_out + hidden, note=note)


def _place(table: Table, condition: RowFilter) -> int:
    try:
        return table.place_of(condition.column)
    except UsageError as error:
        raise UsageError(f"--filter {condition.text!r}: {error}") from None


def _note(table: Table, rows: Sequence[tuple[Cell, ...]], filters: Iterable[RowFilter]) -> Prose:
    """How many rows there are of how many, and what share of the first column that adds up."""
    conditions = " and ".join(each.text for each in filters)
    count = f"Rows with {conditions}: {len(rows)} of {len(table.rows)}"
    totals_are_of_all = " The total includes all rows." if any(table.totals) else ""
    for place, column in enumerate(table.columns):
        whole = None if column.unit is Unit.FRACTION else table.totals[place]
        if isinstance(whole, int | float) and whole and _adds_up(table, place, whole):
            share = _sum(rows, place) / whole
            title = column.title or column.name
            return (f"{count}, ", Number(share, Unit.FRACTION), f" of {title}.{totals_are_of_all}")
    return f"{count}.{totals_are_of_all}"


def _adds_up(table: Table, place: int, whole: float) -> bool:
    """Whether rows sum to the total: those of a tree hold what is inside them, too."""
    return abs(_sum(table.rows, place) - whole) <= 1e-6 * abs(whole)


def _sum(rows: Iterable[tuple[Cell, ...]], place: int) -> float:
    return fsum(cell for row in rows if isinstance(cell := row[place], int | float))

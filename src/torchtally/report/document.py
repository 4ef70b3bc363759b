"""A document for programs, as JSON. Keys are stable; a change of meaning raises the version."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torchtally.table import Cell, LinePlace, Prose, Table
from torchtally.units import Unit, format_number

if TYPE_CHECKING:
    from torchtally.plan.quantity import Quantity

SCHEMA_VERSION = 1

Document = dict[str, Any]


class UnknownOperator(Protocol):
    """An operator without a rule, or without a time."""

    @property
    def op(self) -> str: ...


def dumps(document: Document) -> str:
    """The document as text, its `schema_version` first, one key a line, ASCII only."""
    return json.dumps({"schema_version": SCHEMA_VERSION, **document}, indent=1) + "\n"


def in_words(prose: "Prose | tuple[str | Quantity, ...]") -> str:
    """A sentence with its numbers, each in its unit."""
    parts = (prose,) if isinstance(prose, str) else prose
    return "".join(
        part if isinstance(part, str) else format_number(part.value, part.unit) for part in parts
    )


def remarks(table: Table) -> str:
    """How many rows were left out, and the note."""
    more = f"{table.left_out} more row{'s' * (table.left_out > 1)}." if table.left_out else ""
    return f"{more} {in_words(table.note)}".strip()


def rows_of(table: Table) -> list[dict[str, Cell]]:
    """Each row of a table by the names of its columns; lines of code as `file` and `line`."""
    return [keyed(table, row) for row in table.rows]


def keyed(table: Table, cells: Sequence[Cell]) -> dict[str, Cell]:
    """Cells by the names of their columns."""
    record: dict[str, Cell] = {}
    for column, cell in zip(table.columns, cells, strict=True):
        if column.unit is Unit.LINE:
            record |= pick(cell, "file", "line") if isinstance(cell, LinePlace) else NO_LINE
        else:
            record[column.name] = cell
    return record


NO_LINE: dict[str, Cell] = {"file": None, "line": None}


def columns_of(table: Table) -> list[Document]:
    """The columns' names and the units of their numbers."""
    return [{"name": column.name, "unit": str(column.unit)} for column in table.columns]


def pick(value: object, *names: str) -> Document:
    """These attributes by their names."""
    return {name: getattr(value, name) for name in names}


def gaps_document(gaps: Iterable[UnknownOperator]) -> list[Document]:
    """Operators of which something is unknown, and why."""
    return [{"operator": gap.op, **pick(gap, "count", "reason")} for gap in gaps]


def picks(values: Iterable[object], *names: str) -> list[Document]:
    """These attributes of each."""
    return [pick(value, *names) for value in values]

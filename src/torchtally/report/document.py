"""A document for programs, as JSON. Keys are stable; a change of meaning raises the version."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from torchtally.table import Cell, Prose, Table
from torchtally.units import format_number

if TYPE_CHECKING:
    from torchtally.plan.quantity import Quantity

SCHEMA_VERSION = 1

Document = dict[str, Any]


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
    """Each row of a table by the names of its columns."""
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def columns_of(table: Table) -> list[Document]:
    """The columns' names and the units of their numbers."""
    return [{"name": column.name, "unit": str(column.unit)} for column in table.columns]


def pick(value: object, *names: str) -> Document:
    """These attributes by their names."""
    return {name: getattr(value, name) for name in names}


def picks(values: Iterable[object], *names: str) -> list[Document]:
    """These attributes of each."""
    return [pick(value, *names) for value in values]

"""A document for programs, as JSON: its envelope and the parts that several have."""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torchtally.report.schemas import VERSIONS
from torchtally.table import Cell, LinePlace, Prose, Table
from torchtally.units import Unit, format_number

if TYPE_CHECKING:
    from torchtally.plan.quantity import Quantity

Document = dict[str, Any]


class UnknownOperator(Protocol):
    """An operator without a rule, or without a time."""

    @property
    def op(self) -> str: ...


def identifier(schema: str) -> str:
    """The name and version of a schema, as "run/1". A change of a key's meaning raises it."""
    return f"{schema}/{VERSIONS[schema]}"


def dumps(schema: str, document: Document) -> str:
    """The document as text, its `schema` first, one key a line, ASCII only."""
    return json.dumps({"schema": identifier(schema), **document}, indent=1) + "\n"


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


def rows_of(table: Table) -> list[dict[str, Cell]]:
    """Each row of a table by the names of its columns; lines of code as `file` and `line`."""
    return [cells_by_name(table, row) for row in table.rows]


def cells_by_name(table: Table, cells: Sequence[Cell]) -> dict[str, Cell]:
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


def table_part(table: Table) -> Document:
    """All of a table, without its columns' titles."""
    return {
        "title": in_words(table.title),
        "note": in_words(table.note),
        "columns": columns_of(table),
        "rows": rows_of(table),
        "rows_left_out": table.left_out,
        "rows_filtered_out": table.filtered_out,
        "totals": cells_by_name(table, table.totals),
    }


def pick(value: object, *names: str) -> Document:
    """These attributes by their names."""
    return {name: getattr(value, name) for name in names}


def gaps_document(gaps: Iterable[UnknownOperator]) -> list[Document]:
    """Operators of which something is unknown, and why."""
    return [{"operator": gap.op, **pick(gap, "count", "reason")} for gap in gaps]


def picks(values: Iterable[object], *names: str) -> list[Document]:
    """These attributes of each."""
    return [pick(value, *names) for value in values]

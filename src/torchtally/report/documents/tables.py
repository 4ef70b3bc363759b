"""Tables, and documents of nothing else."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from torchtally.report.documents.account import ConventionPart, convention_part
from torchtally.report.keys import (
    Bytes,
    Cells,
    Count,
    Document,
    DocumentPart,
    Fraction,
    Seconds,
    filled,
    key,
)
from torchtally.report.prose import in_words
from torchtally.table import Cell, LinePlace, Table
from torchtally.units import Unit

if TYPE_CHECKING:
    from torchtally.ledger import Ledger


class ColumnPart(DocumentPart, frozen=True):
    name: str
    unit: str


class TablePart(DocumentPart, frozen=True):
    """Table: rows most expensive first, keyed by the names of its columns."""

    title: Annotated[str, key("Of a table or page")]
    note: Annotated[str, key("What is needed to read it right")]
    rows_left_out: Annotated[Count, key("Rows that --top left out")]
    rows_filtered_out: Annotated[Count, key("Rows that --filter left out")]
    columns: Annotated[list[ColumnPart], key("Of a table: names, and units of numbers")]
    rows: Annotated[list[Cells], key("Of a table, most expensive first; keys are `columns`")]
    totals: Cells


T = TypeVar("T", bound=TablePart)


def table_part(table: Table) -> TablePart:
    """All of a table, without its columns' titles."""
    return with_table(TablePart, table)


def with_table(kind: type[T], table: Table, **values: Any) -> T:
    """A part that is a table with other values."""
    return filled(
        kind,
        title=in_words(table.title),
        note=in_words(table.note),
        columns=table.columns,
        rows=rows_of(table),
        rows_left_out=table.left_out,
        rows_filtered_out=table.filtered_out,
        totals=cells_by_name(table, table.totals),
        **values,
    )


def table_parts(tables: Iterable[tuple[str, Table]]) -> dict[str, TablePart]:
    return {name: table_part(table) for name, table in tables}


def rows_of(table: Table) -> list[dict[str, Cell]]:
    """Each row of a table by the names of its columns; lines of code as `file` and `line`."""
    return [cells_by_name(table, row) for row in table.rows]


def cells_by_name(table: Table, cells: Sequence[Cell]) -> dict[str, Cell]:
    """Cells by the names of their columns."""
    record: dict[str, Cell] = {}
    for column, cell in zip(table.columns, cells, strict=True):
        if column.unit is Unit.LINE:
            is_line = isinstance(cell, LinePlace)
            record |= {name: getattr(cell, name) if is_line else None for name in ("file", "line")}
        else:
            record[column.name] = cell
    return record


class ViewDocument(TablePart, tag_field="schema", tag="view/1", frozen=True):
    """View of a run: `tally show --by`, `tally explain --by` and tables of several chips."""

    script: str
    chip: str
    per: str
    convention: ConventionPart


def view_document(table: Table, ledger: "Ledger") -> ViewDocument:
    """One view: each row by its columns' names."""
    return with_table(
        ViewDocument,
        table,
        script=ledger.trace.script,
        chip=ledger.trace.chip,
        per=ledger.period,
        convention=convention_part(ledger),
    )


class TableDocument(TablePart, tag_field="schema", tag="table/1", frozen=True):
    """One table: `tally diff --by`, `tally plan --models`."""


class DiffDocument(Document, tag="diff/1", frozen=True):
    """Difference of two runs: `tally diff`."""

    title: str
    tables: Annotated[dict[str, TablePart], key("Of the page")]


class AgainstDocument(Document, tag="against/1", frozen=True):
    """Measured and predicted run: `tally explain --against`, `--script`."""

    measured_s: Annotated[Seconds, key("Measured")]
    predicted_s: Annotated[Seconds, key("By the roofline")]
    joined_share: Annotated[Fraction, key("Of the measured operators, those in the simulated run")]
    tables: dict[str, TablePart]


class SnapshotDocument(Document, tag="snapshot/1", frozen=True):
    """Memory snapshot: `tally explain`."""

    peak_allocated_bytes: Bytes
    peak_reserved_bytes: Bytes
    earlier_bytes: Annotated[Bytes, key("Held before a memory history began")]
    tables: dict[str, TablePart]


class BenchDocument(Document, tag="bench/1", frozen=True):
    """Measurement of a device: `tally bench`."""

    title: str
    tables: dict[str, TablePart]


class BudgetDocument(Document, tag="budget/1", frozen=True):
    """Budgets and their history: `tally budget`."""

    file: str
    budgets: Annotated[TablePart, key("What runs may take")]
    histories: Annotated[list[TablePart], key("How each budget changed")]


class PageDocument(Document, tag="page/1", frozen=True):
    """Page of sentences and tables."""

    title: str
    tables: dict[str, TablePart]

"""Which operators a row of a view is the sum of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torchtally.ledger import (
    Entry,
    Ledger,
    Line,
    kernel_of,
    library_line_of,
    line_of,
    module_of,
    once_per_site,
    own_line_of,
)
from torchtally.table import Cell, Table
from torchtally.views.calls import call_part, call_texts
from torchtally.views.lines import line_texts, root_of
from torchtally.views.modules import fold, module_texts

Texts = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class RowKey:
    """What tells the rows of a view apart: cells of these columns, as each operator has them."""

    columns: tuple[str, ...]
    texts: Callable[[Ledger], Callable[[Entry], Texts]]


def row_entries(ledger: Ledger, view: str, table: Table, row: int) -> list[Entry] | None:
    """The reported operators of a row of a view; None for a view whose rows are not operators'."""
    key = ROW_KEYS.get(view)
    if key is None:
        return None
    cells = {column.name: cell for column, cell in zip(table.columns, table.rows[row], strict=True)}
    wanted = tuple(cells[name] for name in key.columns)
    texts = key.texts(ledger)
    return [entry for entry in ledger.reported if texts(entry) == wanted]


def _lines(key: Callable[[Entry], Line | None]) -> RowKey:
    def texts(ledger: Ledger) -> Callable[[Entry], Texts]:
        root = root_of({key(entry) for entry in ledger.reported})
        return once_per_site(lambda entry: line_texts(key(entry), root))

    return RowKey(("line", "source"), texts)


def _calls(ledger: Ledger) -> Callable[[Entry], Texts]:
    return lambda entry: (entry.operator, *call_texts(ledger, call_part(entry)))


ROW_KEYS: Mapping[str, RowKey] = {
    "line": _lines(line_of),
    "own-line": _lines(own_line_of),
    "library-line": _lines(library_line_of),
    "module": RowKey(
        ("module", "class"),
        lambda ledger: once_per_site(lambda entry: module_texts(module_of(entry))),
    ),
    "repeated-module": RowKey(
        ("module", "class"),
        lambda ledger: once_per_site(lambda entry: module_texts(fold(module_of(entry)))),
    ),
    "op": RowKey(("operator",), lambda ledger: lambda entry: (entry.operator,)),
    "call": RowKey(("operator", "inputs", "outputs"), _calls),
    "kernel": RowKey(("kernel",), lambda ledger: lambda entry: (kernel_of(entry),)),
    "kind": RowKey(("kind",), lambda ledger: lambda entry: (str(entry.kind),)),
    "phase": RowKey(("phase",), lambda ledger: lambda entry: (str(entry.op.phase),)),
    "bound": RowKey(("bound",), lambda ledger: lambda entry: (str(ledger.slot(entry).bound),)),
}
"""By the view's name."""

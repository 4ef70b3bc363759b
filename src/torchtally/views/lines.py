"""Costs by source line."""

from collections.abc import Mapping

from torchtally.ledger import Entry, Ledger, Line, Total
from torchtally.views.columns import (
    ALLOCATED,
    BACKWARD,
    FORWARD,
    OPTIMIZER,
    READ,
    RECOMPUTE,
    SAVED,
    WRITTEN,
    cost_table,
)
from torchtally.views.table import Cell, Column, Table, Unit

QUANTITIES = (FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, SAVED, READ, WRITTEN, ALLOCATED)
TEXTS = (Column("place", "line", Unit.PLACE), Column("source", "source", Unit.TEXT))
NO_LINE: tuple[Cell, Cell] = ("(no line)", "")


def lines(ledger: Ledger) -> Table:
    """By the innermost line of the user's own code. A backward operator is on its forward line."""
    return _table("By line of your code", ledger.by_line(), ledger.total)


def library_lines(ledger: Ledger) -> Table:
    """By the innermost line whoever wrote it: a library's own model code, for one."""
    return _table("By innermost line, libraries' included", ledger.by_library_line(), ledger.total)


def _table(title: str, sums: Mapping[Line | None, Total], total: Total) -> Table:
    rows = [(cost, _texts(line)) for line, cost in sums.items()]
    return cost_table(title, QUANTITIES, TEXTS, rows, total)


def _texts(line: Line | None) -> tuple[Cell, Cell]:
    return NO_LINE if line is None else (line.place, line.text)


def is_behind_libraries(ledger: Ledger) -> bool:
    """Most of the work is done in library code that the user's own lines merely call.

    Then the user's lines (`trainer.train()`) say little, and the libraries' lines more.
    """
    flops = sum(it.cost.flops for it in ledger.steady if _is_in_library(it))
    return 10 * flops > 6 * ledger.total.flops


def _is_in_library(entry: Entry) -> bool:
    frames = entry.op.site.frames
    return bool(frames) and not frames[0].is_own

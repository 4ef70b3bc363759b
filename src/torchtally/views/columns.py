"""The columns that tables of totals share, and the table they make."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from torchtally.ledger import Total
from torchtally.views.table import Cell, Column, Table, Unit


@dataclass(frozen=True, slots=True)
class Quantity:
    """A column filled with one quantity of a total."""

    column: Column
    of: Callable[[Total], int]


def _quantity(name: str, title: str, unit: Unit, rank: int = 0) -> Quantity:
    return Quantity(Column(name, title, unit, rank), attrgetter(name))


COUNT = _quantity("count", "ops", Unit.COUNT)
FLOPS = _quantity("flops", "FLOPs", Unit.FLOPS)
MATMUL = _quantity("flops_matmul", "in matmuls", Unit.FLOPS, rank=3)
FORWARD = _quantity("flops_forward", "fwd FLOPs", Unit.FLOPS)
BACKWARD = _quantity("flops_backward", "bwd FLOPs", Unit.FLOPS)
RECOMPUTE = _quantity("flops_recompute", "rec FLOPs", Unit.FLOPS)
OPTIMIZER = _quantity("flops_optimizer", "opt FLOPs", Unit.FLOPS, rank=4)
READ = _quantity("bytes_read", "read", Unit.BYTES, rank=2)
WRITTEN = _quantity("bytes_written", "written", Unit.BYTES, rank=2)
SAVED = _quantity("bytes_saved", "saved", Unit.BYTES)
ALLOCATED = _quantity("bytes_allocated", "allocated", Unit.BYTES, rank=3)
VIEWS = _quantity("views", "views", Unit.COUNT, rank=1)
COPIES = _quantity("copies", "copies", Unit.COUNT, rank=1)
SHARE = Column("share", "share", Unit.FRACTION, rank=1)
"""Of the step's FLOPs."""

Labelled = tuple[Total, tuple[Cell, ...]]
"""A row before it is one: what it costs, and its texts."""


def cost_table(
    title: str,
    quantities: Sequence[Quantity],
    texts: Sequence[Column],
    rows: Iterable[Labelled],
    total: Total,
    *,
    note: str = "",
) -> Table:
    """A table of totals, most FLOPs first, then most bytes moved.

    Recomputation and the optimizer get a column only where there is any.
    """
    kept = [it for it in quantities if it not in (RECOMPUTE, OPTIMIZER) or it.of(total)]
    ordered = sorted(rows, key=lambda row: (-row[0].flops, -row[0].bytes, str(row[1])))

    def numbers(cost: Total) -> tuple[Cell, ...]:
        return (cost.flops / total.flops if total.flops else 0.0, *(it.of(cost) for it in kept))

    return Table(
        title=title,
        columns=(SHARE, *(it.column for it in kept), *texts),
        rows=tuple((*numbers(cost), *labels) for cost, labels in ordered),
        totals=(*numbers(total), *(None for _ in texts)),
        note=note,
    )

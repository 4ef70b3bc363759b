"""The columns that tables of totals share, and the table they make."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from torchtally.ledger import Key, Ledger, Total
from torchtally.table import Cell, Column, Table
from torchtally.units import Unit


@dataclass(frozen=True, slots=True)
class Figure:
    """A column filled with one quantity of a total."""

    column: Column
    of: Callable[[Total], int | float | None]


def _quantity(name: str, title: str, unit: Unit, rank: int = 0) -> Figure:
    return Figure(Column(name, title, unit, rank), attrgetter(name))


SECONDS = _quantity("seconds", "time", Unit.SECONDS)
KERNEL = _quantity("kernel_s", "kernels", Unit.SECONDS, rank=6)
"""Of the time, what kernels take: the rest is waiting for the host."""
COUNT = _quantity("count", "ops", Unit.COUNT)
FLOPS = _quantity("flops", "FLOPs", Unit.FLOPS)
MATMUL = _quantity("flops_matmul", "in matmuls", Unit.FLOPS, rank=5)
FORWARD = _quantity("flops_forward", "fwd FLOPs", Unit.FLOPS)
BACKWARD = _quantity("flops_backward", "bwd FLOPs", Unit.FLOPS, rank=1)
RECOMPUTE = _quantity("flops_recompute", "rec FLOPs", Unit.FLOPS)
OPTIMIZER = _quantity("flops_optimizer", "opt FLOPs", Unit.FLOPS, rank=6)
EVALUATION = _quantity("flops_evaluation", "eval FLOPs", Unit.FLOPS)
READ = _quantity("bytes_read", "read", Unit.BYTES, rank=4)
WRITTEN = _quantity("bytes_written", "written", Unit.BYTES, rank=4)
MOVED = Figure(Column("bytes_moved", "moved", Unit.BYTES, rank=3), attrgetter("bytes"))
"""Read and written, for tables with times: what a memory-bound operator's time goes into."""
SAVED = _quantity("bytes_saved", "saved", Unit.BYTES)
ALLOCATED = _quantity("bytes_allocated", "allocated", Unit.BYTES, rank=5)
VIEWS = _quantity("views", "views", Unit.COUNT, rank=3)
COPIES = _quantity("copies", "copies", Unit.COUNT, rank=3)
EXPOSED = _quantity("exposed_s", "exposed", Unit.SECONDS, rank=1)
NETWORK = _quantity("network_s", "network", Unit.SECONDS, rank=4)
PAYLOAD = Figure(
    Column("payload_bytes", "payload", Unit.BYTES, rank=3), attrgetter("network_bytes")
)
"""Of collectives, where a run has any: time that nothing hides, all their time, what each of their
ranks hands over or is given."""
OF_CODE = (EXPOSED, NETWORK, FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, EVALUATION, SAVED, PAYLOAD)
OF_MODULES = (*OF_CODE, READ, WRITTEN)
OF_LINES = (*OF_CODE, VIEWS, COPIES, READ, WRITTEN, ALLOCATED)
OF_OPERATORS = (COUNT, FLOPS, MOVED, READ, WRITTEN, ALLOCATED)
OF_PHASES = (COUNT, FLOPS, MATMUL, MOVED, READ, WRITTEN, SAVED, ALLOCATED)
OF_TREE = (FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, EVALUATION, SAVED, MOVED, KERNEL, COUNT)
ONLY_WHERE_ANY = (RECOMPUTE, OPTIMIZER, EVALUATION)


def _over(part: float, whole: float) -> float | None:
    """None where there is nothing to divide."""
    return part / whole if part and whole else None


FLOP_RATE = Figure(
    Column("flop_per_s", "FLOP/s", Unit.FLOP_PER_S),
    lambda total: _over(total.flops, total.kernel_s),
)
BYTE_RATE = Figure(
    Column("bytes_per_s", "moved/s", Unit.BYTE_PER_S),
    lambda total: _over(total.bytes, total.kernel_s),
)
PREDICTED = _quantity("predicted_s", "roofline", Unit.SECONDS, rank=4)
OF_ROOFLINE = Figure(
    Column("roofline_share", "reached", Unit.FRACTION),
    lambda total: _over(total.predicted_s, total.kernel_s),
)
ACHIEVED = (FLOP_RATE, BYTE_RATE, OF_ROOFLINE, PREDICTED)
"""Of measured times: what kernels reached while they ran, and what they would take by the roofline,
over what they took and as it is."""
SHARE = Column("flops_share", "share", Unit.FRACTION, rank=2)
"""Of the step's FLOPs."""
TIMED_SHARES = (
    Column("seconds_share", "of time", Unit.FRACTION, rank=2),
    Column("flops_share", "of FLOPs", Unit.FRACTION, rank=2),
)
"""Of the step's time and of its FLOPs, where there are times."""


def dearest_first(totals: Mapping[Key, Total]) -> list[tuple[Key, Total]]:
    """Groups by time where there is any, FLOPs, bytes."""
    return sorted(totals.items(), key=lambda pair: largest_first((pair[1], (str(pair[0]),))))


Labelled = tuple[Total, tuple[Cell, ...]]
"""A row before it is one: what it costs, and its texts."""


def cost_table(
    title: str,
    quantities: Sequence[Figure],
    texts: Sequence[Column],
    rows: Iterable[Labelled],
    ledger: Ledger,
    *,
    note: str = "",
) -> Table:
    """A table of totals: most time first where there are times, then most FLOPs, then most bytes
    moved.

    Recomputation, the optimizer, evaluation and the network get columns only where there is any.
    """
    total, is_timed = ledger.total, ledger.is_timed
    kept = [
        quantity
        for quantity in quantities
        if (quantity not in (RECOMPUTE, OPTIMIZER, EVALUATION) or quantity.of(total))
        and (quantity is not MOVED or is_timed)
        and (quantity not in (EXPOSED, NETWORK) or (is_timed and total.network_bytes))
        and (quantity is not PAYLOAD or total.network_bytes)
        and (quantity not in (SAVED, VIEWS, COPIES) or not ledger.is_measured)
        and (quantity is not ALLOCATED or ledger.knows_memory)
    ]
    shares = TIMED_SHARES if is_timed else (SHARE,)
    if ledger.is_measured:
        kept = [as_background(quantity) for quantity in kept if quantity not in (READ, WRITTEN)]
    before = (SECONDS,) if is_timed else ()
    after = (KERNEL, *(ACHIEVED if ledger.is_measured else ())) if is_timed else ()

    def numbers(cost: Total) -> tuple[Cell, ...]:
        return (
            *(quantity.of(cost) for quantity in before),
            *(
                part_of(getattr(cost, WHOLE[share.name]), getattr(total, WHOLE[share.name]))
                for share in shares
            ),
            *(quantity.of(cost) for quantity in (*kept, *after)),
        )

    return Table(
        title=title,
        columns=(
            *(quantity.column for quantity in before),
            *shares,
            *(quantity.column for quantity in (*kept, *after)),
            *texts,
        ),
        rows=tuple((*numbers(cost), *labels) for cost, labels in sorted(rows, key=largest_first)),
        totals=(*numbers(total), *(None for _ in texts)),
        note=note,
    )


def as_background(figure: Figure) -> Figure:
    """Shown where there is room: what was reached is what a measured run is read for."""
    rank = figure.column.rank
    if rank or figure is COUNT:
        return figure
    return replace(figure, column=replace(figure.column, rank=4))


WHOLE = {"seconds_share": "seconds", "flops_share": "flops"}
"""What a share is a share of."""


def part_of(part: float, whole: float) -> float:
    """A fraction; 0 of nothing."""
    return part / whole if whole else 0.0


def largest_first(row: Labelled) -> tuple[float, int, int, str]:
    """Sort key by time (all equal where there is none), FLOPs, bytes."""
    cost, texts = row
    return (-cost.seconds, -cost.flops, -cost.bytes, str(texts))

"""Costs by what limits them: compute, memory, network, transfer, overhead."""

from dataclasses import replace

from torchtally.ledger import Ledger, Line, line_of, once_per_site
from torchtally.table import Cell, Column, Table
from torchtally.timing.roofline import Bound
from torchtally.units import Unit
from torchtally.views.bottlenecks import seconds_by_bound
from torchtally.views.columns import COUNT, FLOPS, KERNEL, MOVED, SECONDS, part_of
from torchtally.views.lines import TEXTS, line_texts, root_of
from torchtally.views.view import view

QUANTITIES = (COUNT, FLOPS, MOVED, KERNEL)
COLUMNS = (
    Column("bound", "bound", Unit.NAME),
    SECONDS.column,
    Column("seconds_share", "of time", Unit.FRACTION),
    replace(COUNT.column, rank=4),
    *(quantity.column for quantity in QUANTITIES[1:]),
    Column("line_share", "of it", Unit.FRACTION),
    *TEXTS,
)
"""The last three are of the line that takes most of a bound's time."""

NO_TIMES = "No times: the ledger's chip is unknown."

NOTE = (
    "An operator's whole time counts under its largest part. Compute: the arithmetic units. "
    "Memory: bytes to and from device memory. Network: bytes between devices. Overhead: kernels "
    "too small to fill the device, and waiting for the host to issue them. The line is the one "
    "that takes most of a bound's time."
)


@view("bound", "what limits it: compute, memory, network, transfer, overhead", "time")
def bounds(ledger: Ledger) -> Table:
    """Table by what would have to be faster, and the line that waits for it most."""
    by_bound = ledger.by_bound() if ledger.is_timed else {}
    total = ledger.total
    seconds_of = seconds_by_bound(ledger, once_per_site(line_of))
    root = root_of(seconds_of)

    def top_line(bound: Bound) -> tuple[Cell, ...]:
        whole = by_bound[bound].seconds
        if not whole:
            return (None, "", "")
        line: Line | None = max(seconds_of, key=lambda place: seconds_of[place].get(bound, 0.0))
        return (part_of(seconds_of[line][bound], whole), *line_texts(line, root))

    rows = tuple(
        (
            str(bound),
            subtotal.seconds,
            part_of(subtotal.seconds, total.seconds),
            *(quantity.of(subtotal) for quantity in QUANTITIES),
            *top_line(bound),
        )
        for bound, subtotal in sorted(by_bound.items(), key=lambda pair: -pair[1].seconds)
    )
    sums: tuple[Cell, ...] = (
        total.seconds,
        part_of(total.seconds, total.seconds),
        *(quantity.of(total) for quantity in QUANTITIES),
    )
    return Table(
        title="By what limits the time",
        columns=COLUMNS,
        rows=rows,
        totals=(None, *(sums if rows else [None] * len(sums)), None, None, None),
        note=NOTE if ledger.is_timed else NO_TIMES,
    )

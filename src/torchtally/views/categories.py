"""Memory at the peak, by category."""

from collections import Counter

from torchtally.ledger import Ledger
from torchtally.table import Column, Table
from torchtally.units import Unit
from torchtally.views.peak import title_of
from torchtally.views.view import view

COLUMNS = (
    Column("bytes", "at peak", Unit.BYTES),
    Column("bytes_share", "share", Unit.FRACTION),
    Column("count", "storages", Unit.COUNT),
    Column("category", "category", Unit.NAME),
)


@view(
    "category",
    "at the peak: parameters, gradients, optimizer state, activations, ...",
    subject="memory",
)
def categories(ledger: Ledger) -> Table:
    """Bytes of each category at the peak of the whole run."""
    memory = ledger.memory
    peak = memory.peak_bytes
    count = Counter(category for _, category in memory.alive_at_peak)
    largest_first = sorted(memory.at_peak, key=lambda pair: -pair[1])
    rows = [
        (size, size / peak if peak else 0.0, count[category], title_of(category))
        for category, size in largest_first
        if size
    ]
    return Table(
        title="Memory at the peak, by category",
        columns=COLUMNS,
        rows=tuple(rows),
        totals=(peak, 1.0 if peak else 0.0, count.total(), None),
        note="Bytes of tensors, rounded as the allocator does; of the whole run.",
    )

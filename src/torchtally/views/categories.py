"""Memory at the peak: what it is held for, and which lines made it."""

from collections import Counter

from torchtally.ledger import Ledger, Line, line_of
from torchtally.memory import Category
from torchtally.views.lines import TEXTS, line_texts, own_root
from torchtally.views.table import Column, Table, Unit

COLUMNS = (
    Column("bytes", "at peak", Unit.BYTES),
    Column("fraction", "share", Unit.FRACTION),
    Column("count", "storages", Unit.COUNT),
    Column("name", "category", Unit.NAME),
)


def categories(ledger: Ledger) -> Table:
    """Bytes of each category at the moment of the whole run when most is held."""
    memory = ledger.memory
    peak = memory.peak_bytes
    count = Counter(category for _, category in memory.alive_at_peak)
    largest_first = sorted(memory.at_peak, key=lambda pair: -pair[1])
    rows = [
        (held, held / peak if peak else 0.0, count[category], category.replace("_", " "))
        for category, held in largest_first
        if held
    ]
    return Table(
        title="Memory at the peak, by category",
        columns=COLUMNS,
        rows=tuple(rows),
        totals=(peak, 1.0 if peak else 0.0, count.total(), None),
        note="Bytes of tensors, rounded as the allocator does; of the whole run.",
    )


HELD_COLUMNS = (
    Column("category", "held for", Unit.NAME),
    Column("bytes", "at peak", Unit.BYTES),
    Column("fraction", "share", Unit.FRACTION),
    Column("count", "storages", Unit.COUNT, rank=1),
    *TEXTS,
)


def peak_lines(ledger: Ledger) -> Table:
    """Bytes held at the peak by the line that allocated them, and what they are held for."""
    line_at = {entry.op.clock: line_of(entry) for entry in ledger.entries}
    held: Counter[tuple[Line | None, Category]] = Counter()
    count: Counter[tuple[Line | None, Category]] = Counter()
    for storage, category in ledger.memory.alive_at_peak:
        group = line_at.get(storage.born), category
        held[group] += storage.bytes
        count[group] += 1
    peak = ledger.memory.peak_bytes
    root = own_root(it.file for it, _ in held if it is not None and it.is_own)
    rows = tuple(
        (
            group[1].replace("_", " "),
            size,
            size / peak if peak else 0.0,
            count[group],
            *line_texts(group[0], root),
        )
        for group, size in held.most_common()
    )
    return Table(
        title="Memory at the peak, by the line that allocated it",
        columns=HELD_COLUMNS,
        rows=rows,
        totals=(None, peak, 1.0 if peak else 0.0, count.total(), None, None),
        note="A gradient is allocated by its forward line's backward.",
    )

"""Device memory outside of tensors: how much, what for, and how sure each figure is."""

from collections import Counter

from torchtally.ledger import Ledger
from torchtally.memory import Category, timeline
from torchtally.memory.workspace import KINDS
from torchtally.table import Column, Table
from torchtally.trace import Storage
from torchtally.units import Unit
from torchtally.views.view import view

COLUMNS = (
    Column("name", "what", Unit.NAME),
    Column("bytes", "at the peak", Unit.BYTES),
    Column("most_bytes", "at most", Unit.BYTES),
    Column("trust", "figure is", Unit.NAME),
    Column("source", "source", Unit.TEXT, rank=1),
)


@view("workspace", "memory outside of tensors, and how reliable each figure is", subject="memory")
def workspaces(ledger: Ledger) -> Table:
    """Libraries' workspaces and operators' temporaries, by what they are for."""
    memory = ledger.memory
    kept: dict[str, list[Storage]] = {}
    for storage, category in zip(memory.storages, memory.categories, strict=True):
        if category is Category.WORKSPACES:
            kept.setdefault(storage.name, []).append(storage)
    at_peak = workspaces_at_peak(ledger)
    courses = {name: timeline(storages) for name, storages in kept.items()}
    rows = [
        (name, at_peak[name], course.peak_bytes, *trust_of(name))
        for name, course in sorted(courses.items(), key=lambda item: -at_peak[item[0]])
    ]
    return Table(
        title="Device memory outside of tensors",
        columns=COLUMNS,
        rows=tuple(rows),
        totals=(None, at_peak.total(), None, None, None),
        note="The CUDA context, an estimate, is outside the allocator: the report's first lines "
        "have it. NCCL takes no memory on one GPU.",
    )


def workspaces_at_peak(ledger: Ledger) -> Counter[str]:
    """Bytes at the peak by what they are for."""
    sizes: Counter[str] = Counter()
    for storage, category in ledger.memory.alive_at_peak:
        if category is Category.WORKSPACES:
            sizes[storage.name] += storage.bytes
    return sizes


def trust_of(name: str) -> tuple[str, str]:
    """How far a figure can be trusted, and its source."""
    kind = KINDS.get(name)
    return (str(kind.trust), kind.source) if kind is not None else ("asked for", "the script")

"""Out of memory: what was asked for, where, and who held the rest."""

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass

from torchtally.ledger import Ledger, Line, line_of
from torchtally.memory import Category, is_alive
from torchtally.record import Refusal
from torchtally.views.lines import TEXTS, line_texts, own_root
from torchtally.views.table import Column, Table, Unit


@dataclass(frozen=True, slots=True)
class Shortage:
    """A request for memory that was refused, and could not be helped."""

    refusal: Refusal
    moment: str
    """"step 1, backward of model.py:41"."""
    holders: Table


COLUMNS = (
    Column("category", "held for", Unit.NAME),
    Column("bytes", "held", Unit.BYTES),
    Column("fraction", "share", Unit.FRACTION),
    Column("count", "storages", Unit.COUNT, rank=2),
    Column("since", "since", Unit.NAME, rank=1),
    *TEXTS,
    Column("module", "module", Unit.TEXT, rank=3),
)

Holder = tuple[Line | None, Category, str]
"""The line that allocated it, what it is held for, and since which step."""


def holders(ledger: Ledger, tick: int) -> Table:
    """Bytes held at a tick: by the line that allocated them, what for, and how long already."""
    memory = ledger.memory
    entry_at = {entry.op.clock: entry for entry in ledger.entries}
    held: Counter[Holder] = Counter()
    count: Counter[Holder] = Counter()
    modules: dict[Holder, set[str]] = {}
    for storage, category in zip(memory.storages, memory.categories, strict=True):
        if not is_alive(storage, tick):
            continue
        entry = entry_at.get(storage.born)
        line = line_of(entry) if entry is not None else None
        group = line, category, since(ledger, storage.born)
        held[group] += storage.bytes
        count[group] += 1
        module = entry.op.site.module if entry is not None else ""
        modules.setdefault(group, set()).add(module)
    whole = held.total()
    root = own_root(it[0].file for it in held if it[0] is not None and it[0].is_own)
    rows = tuple(
        (
            group[1].replace("_", " "),
            size,
            size / whole if whole else 0.0,
            count[group],
            group[2],
            *line_texts(group[0], root),
            common_module(modules[group]),
        )
        for group, size in held.most_common()
    )
    return Table(
        title="Who held the memory when it ran out",
        columns=COLUMNS,
        rows=rows,
        totals=(None, whole, 1.0 if whole else 0.0, count.total(), None, None, None, None),
        note="A gradient is allocated by its forward line's backward.",
    )


def since(ledger: Ledger, tick: int) -> str:
    """The training step of a tick: "step 2"."""
    return f"step {bisect_right(ledger.trace.step_ends, tick) + 1}"


def common_module(paths: set[str]) -> str:
    """The module all these lie in, with the number of them: "h (12)"; "" for the whole model."""
    if len(paths) == 1:
        return next(iter(paths))
    parts = [path.split(".") for path in sorted(paths)]
    common = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return f"{'.'.join(common)} ({len(paths)})".strip()

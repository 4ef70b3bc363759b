"""What is held at a moment, by the operator that allocated it."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from torchtally.ledger import Entry, Ledger, Line, line_of
from torchtally.memory import Category, is_alive
from torchtally.trace import Storage

Held = tuple[int, int]
"""Bytes, storages."""
NOTHING: Held = (0, 0)


def crowded_tick(ledger: Ledger) -> int:
    """Where the run ran out of memory, else where it held most."""
    refusal = ledger.trace.final_refusal
    return ledger.memory.peak_tick if refusal is None else max(refusal.tick - 1, 0)


def entry_at(ledger: Ledger, tick: int) -> Entry | None:
    """The operator that runs at a tick, or did last; None before the first."""
    place = bisect_right(ledger.entries, tick, key=lambda entry: entry.op.clock) - 1
    return ledger.entries[place] if place >= 0 else None


def held_with_makers(ledger: Ledger, tick: int) -> Iterator[tuple[Storage, Category, Entry | None]]:
    """Every storage that is alive at a tick, largest first, with what allocated it."""
    entries = {entry.op.clock: entry for entry in ledger.entries if entry.is_first}
    for storage, category in ledger.memory.alive_at(tick):
        yield storage, category, entries.get(storage.born)


def heaviest_line(pairs: Sequence[tuple[Storage, Entry | None]]) -> Line | None:
    """The line that allocated most of these."""
    sizes: dict[Line | None, int] = {}
    for storage, entry in pairs:
        line = None if entry is None else line_of(entry)
        sizes[line] = sizes.get(line, 0) + storage.bytes
    return max(sizes, key=lambda line: sizes[line], default=None)


def held_at_end(ledger: Ledger, step: int) -> dict[Line | None, Held]:
    """Bytes alive at the last operator of a completed step, by line; none before the first."""
    kept: dict[Line | None, Held] = {}
    if step < 1:
        return kept
    tick = ledger.trace.step_ends[step - 1] - 1
    entry_at = {entry.op.clock: entry for entry in ledger.entries if entry.is_first}
    for storage in ledger.memory.storages:
        if is_alive(storage, tick):
            entry = entry_at.get(storage.born)
            line = None if entry is None else line_of(entry)
            size, count = kept.get(line, NOTHING)
            kept[line] = size + storage.bytes, count + 1
    return kept

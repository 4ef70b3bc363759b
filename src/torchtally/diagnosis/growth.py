"""Memory that every step holds more of than the one before: tensors of past steps kept alive."""

from collections.abc import Iterator

from torchtally.diagnosis.diagnosis import Diagnosis
from torchtally.diagnosis.peak import MemoryPeak
from torchtally.diagnosis.rule import rule
from torchtally.ledger import Ledger, Line, line_of
from torchtally.memory import is_alive
from torchtally.table import Number
from torchtally.units import Unit

STEPS = 3
"""Steps whose ends are compared: the first also allocates optimizer state."""
LEAST_SHARE = 0.001
"""Of the peak, for each step: a leak is small at first."""

BytesAndCount = tuple[int, int]
NOTHING: BytesAndCount = (0, 0)
HeldByLine = dict[Line | None, BytesAndCount]


@rule("growth")
def growth(peak: MemoryPeak) -> Iterator[Diagnosis]:
    """Find lines that hold the same amount more at the end of each of the last three steps."""
    steps = len(peak.ledger.trace.step_ends)
    if steps < STEPS:
        return
    older, old, new = (held_at_end(peak.ledger, steps - back) for back in (2, 1, 0))
    grown = {
        line: new[line][0] - old[line][0]
        for line in new
        if line in old and line in older
        if new[line][0] - old[line][0] == old[line][0] - older[line][0] > 0
    }
    per_step = sum(grown.values())
    if per_step < LEAST_SHARE * peak.bytes:
        return
    line = max(grown, key=lambda line: grown[line])
    yield Diagnosis(
        "growth",
        (
            "Memory grows by ",
            Number(per_step, Unit.BYTES),
            " with every step: what is made here stays alive.",
        ),
        "A list, or a sum of losses, keeps it with its graph: keep .item() or .detach() of it.",
        line,
        per_step,
        min(1.0, per_step * steps / peak.bytes),
    )


def held_at_end(ledger: Ledger, step: int) -> HeldByLine:
    """Sum bytes and storages alive at a step's last operator, by line; none before the first."""
    kept: HeldByLine = {}
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

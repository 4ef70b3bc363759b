"""One checkpoint around the whole model: backward makes all activations again at once."""

from collections import Counter
from collections.abc import Iterator

from torchtally.diagnosis.diagnosis import Diagnosis
from torchtally.diagnosis.peak import MemoryPeak
from torchtally.diagnosis.rule import rule
from torchtally.table import Number
from torchtally.trace import Phase
from torchtally.units import Unit

MOST = 0.5
"""Of the operators that a step recomputes: with a checkpoint for each block, one has a few."""


@rule("checkpoints")
def checkpoints(peak: MemoryPeak) -> Iterator[Diagnosis]:
    """Find what a recomputation made that holds most at the peak, and is most of its step's."""
    region_of: dict[int, tuple[int, int]] = {}
    step, region = 0, 0
    ends = iter(peak.ledger.trace.step_ends)
    end = next(ends, None)
    for entry in peak.ledger.entries:
        if end is not None and entry.op.clock >= end:
            step, end = step + 1, next(ends, None)
        # A recomputation is an unbroken row of operators: before and after it come gradients.
        if entry.op.phase is Phase.RECOMPUTE:
            region_of[entry.op.clock] = step, region
        elif entry.op.phase is Phase.BACKWARD:
            region += 1
    held_bytes: Counter[tuple[int, int]] = Counter()
    for held in peak.held:
        if held.storage.born in region_of:
            held_bytes[region_of[held.storage.born]] += held.storage.bytes
    if not held_bytes:
        return
    largest = max(held_bytes, key=lambda place: held_bytes[place])
    operators = Counter(region_of.values())
    of_step = sum(count for (step, _), count in operators.items() if step == largest[0])
    if operators[largest] <= MOST * of_step:
        return
    yield from peak.diagnose(
        "checkpoints",
        lambda held: region_of.get(held.storage.born) == largest,
        lambda kept_bytes: (
            "One checkpoint spans most of the model: recomputing it holds ",
            Number(kept_bytes, Unit.BYTES),
            " at the peak, as a run without it would.",
        ),
        "Checkpoint each block by itself.",
        least_share=0.25,
    )

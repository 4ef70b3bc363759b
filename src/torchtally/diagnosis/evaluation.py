"""Evaluation that holds more than training does."""

from collections.abc import Iterator

from torchtally.diagnosis.diagnosis import Diagnosis
from torchtally.diagnosis.peak import MemoryPeak
from torchtally.diagnosis.rule import rule
from torchtally.memory import Category
from torchtally.table import Number
from torchtally.trace import Phase
from torchtally.units import Unit

MORE = 1.2
"""Times what training holds."""
MADE_BY_IT = frozenset({Category.ACTIVATIONS, Category.TEMPORARIES, Category.INPUTS})


@rule("evaluation")
def evaluation(peak: MemoryPeak) -> Iterator[Diagnosis]:
    """Find what evaluation has made, where its peak is above that of all training steps."""
    ledger, ends = peak.ledger, peak.ledger.trace.step_ends
    if not ends or peak.tick < ends[0]:
        return
    if not (peak.phase is Phase.EVALUATION or is_behind_training(peak)):
        return
    course = ledger.memory.timeline
    trained_bytes = course.at(course.peak_tick_between(0, ends[-1]))
    if peak.bytes < MORE * trained_bytes:
        return
    start = max(end for end in ends if end <= peak.tick)
    yield from peak.diagnose(
        "evaluation",
        lambda held: held.storage.born >= start and held.category in MADE_BY_IT,
        lambda kept_bytes: (
            "Evaluation holds more than training does (",
            Number(trained_bytes, Unit.BYTES),
            "): ",
            Number(kept_bytes, Unit.BYTES),
            " of its own.",
        ),
        "Keep of each batch what is needed (argmax, .item(), .cpu()) instead of its outputs.",
    )


def is_behind_training(peak: MemoryPeak) -> bool:
    """Whether no gradient is computed after the last step, in a script that went on."""
    last = peak.ledger.trace.step_ends[-1]
    return (
        peak.tick >= last
        and peak.ledger.trace.ending.kind != "steps"
        and not any(
            entry.op.phase is Phase.BACKWARD and entry.op.clock >= last
            for entry in peak.ledger.entries
        )
    )

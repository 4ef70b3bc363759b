"""Evaluation that holds more than training does."""

from collections.abc import Iterator

from torchtally.diagnosis.holding import crowded_tick, entry_at, heaviest_line, held_with_makers
from torchtally.diagnosis.rule import LEAST_SHARE, Diagnosis, rule
from torchtally.ledger import Ledger, line_of
from torchtally.memory import Category
from torchtally.table import Number
from torchtally.trace import Phase
from torchtally.units import Unit

MORE = 1.2
"""Times what training holds."""
MADE_BY_IT = frozenset({Category.ACTIVATIONS, Category.TEMPORARIES, Category.INPUTS})


@rule("evaluation")
def evaluation(ledger: Ledger) -> Iterator[Diagnosis]:
    """What it has at the peak, where that lies behind the training steps and above theirs."""
    ends = ledger.trace.step_ends
    tick, peak_bytes = crowded_tick(ledger), ledger.memory.peak_bytes
    now = entry_at(ledger, tick)
    if not ends or now is None or tick < ends[0]:
        return
    after = max((end for end in ends if end <= tick), default=0)
    is_evaluation = now.op.phase is Phase.EVALUATION or (
        tick >= ends[-1]
        and not any(
            entry.op.phase is Phase.BACKWARD and entry.op.clock >= ends[-1]
            for entry in ledger.entries
        )
        and ledger.trace.ending.kind != "steps"
    )
    if not is_evaluation:
        return
    kept = [
        (storage, entry)
        for storage, category, entry in held_with_makers(ledger, tick)
        if storage.born >= after and category in MADE_BY_IT
    ]
    kept_bytes = sum(storage.bytes for storage, _ in kept)
    trained_bytes = ledger.memory.timeline.at(ledger.memory.timeline.peak_tick_between(0, ends[-1]))
    if kept_bytes < LEAST_SHARE * peak_bytes or peak_bytes < MORE * trained_bytes:
        return
    yield Diagnosis(
        "evaluation",
        ("Evaluation holds more than training does (", Number(trained_bytes, Unit.BYTES), "): ",
         Number(kept_bytes, Unit.BYTES), " of its own."),
        "Keep of each batch what is needed (argmax, .item(), .cpu()) instead of its outputs.",
        heaviest_line(kept) or line_of(now),
        kept_bytes,
        kept_bytes / peak_bytes,
    )  # fmt: skip

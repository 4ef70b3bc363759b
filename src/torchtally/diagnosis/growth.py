"""Memory that every step holds more of than the one before: tensors of past steps kept alive."""

from collections.abc import Iterator

from torchtally.diagnosis.holding import held_at_end
from torchtally.diagnosis.rule import Diagnosis, rule
from torchtally.ledger import Ledger
from torchtally.table import Number
from torchtally.units import Unit

STEPS = 3
"""Steps whose ends are compared: the first also allocates optimizer state."""
LEAST_SHARE = 0.001
"""Of the peak, for each step: a leak is small at first."""


@rule("growth")
def growth(ledger: Ledger) -> Iterator[Diagnosis]:
    """Lines that hold the same amount more at the end of each of the last three steps."""
    steps = len(ledger.trace.step_ends)
    peak_bytes = ledger.memory.peak_bytes
    if steps < STEPS:
        return
    older, old, new = (held_at_end(ledger, steps - back) for back in (2, 1, 0))
    grown = {
        line: new[line][0] - old[line][0]
        for line in new
        if line in old and line in older
        if new[line][0] - old[line][0] == old[line][0] - older[line][0] > 0
    }
    per_step = sum(grown.values())
    if per_step < LEAST_SHARE * peak_bytes:
        return
    line = max(grown, key=lambda line: grown[line])
    yield Diagnosis(
        "growth",
        ("Memory grows by ", Number(per_step, Unit.BYTES), " with every step: what"
         " is made here stays alive."),
        "A list, or a sum of losses, keeps it with its graph: keep .item() or .detach() of it.",
        line,
        per_step,
        min(1.0, per_step * steps / peak_bytes),
    )  # fmt: skip

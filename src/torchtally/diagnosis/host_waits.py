"""Waits of the host for the device, after each of which the device stands idle."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator

from torchtally.diagnosis.diagnosis import Diagnosis
from torchtally.diagnosis.peak import MemoryPeak
from torchtally.diagnosis.rule import rule
from torchtally.ledger import Line, line_of
from torchtally.table import Number
from torchtally.units import Unit

LEAST_WAITS = 10
"""In a step: one for its loss and one for its batch are usual."""
LEAST_IDLE = 0.2
"""Of the step's time."""


@rule("host_waits")
def host_waits(peak: MemoryPeak) -> Iterator[Diagnosis]:
    """Find waits in the reported step, where the device is idle for much of it.

    Its line is the one behind whose operators the host waits most often.
    """
    ledger = peak.ledger
    if not ledger.is_timed or not ledger.reported or ledger.reported_period.step is None:
        return
    clocks = [entry.op.clock for entry in ledger.reported]
    waits = ledger.trace.waits
    waits = waits[bisect_right(waits, clocks[0]) : bisect_right(waits, clocks[-1])]
    total = ledger.total
    idle_share = 1 - total.kernel_s / total.seconds if total.seconds else 0.0
    if len(waits) < LEAST_WAITS or idle_share < LEAST_IDLE:
        return
    before = [ledger.reported[bisect_left(clocks, tick) - 1] for tick in waits]
    lines: Counter[Line | None] = Counter(line_of(entry) for entry in before)
    ((line, count),) = lines.most_common(1)
    yield Diagnosis(
        "host_waits",
        (
            "The host waits for the GPU ",
            Number(len(waits), Unit.COUNT),
            " times a step, ",
            Number(count, Unit.COUNT),
            " of them here; the GPU stands idle ",
            Number(idle_share, Unit.FRACTION),
            " of the time.",
        ),
        "Read values (.item(), .cpu(), if tensor, checks of arguments) once a step, all at once,"
        " and copy with non_blocking=True from pinned memory.",
        line,
        0,
        idle_share,
    )

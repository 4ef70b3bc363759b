"""How far a figure may be off: the least and the most that a prediction stands for."""

from dataclasses import dataclass

from torchtally.ledger import Ledger
from torchtally.views.summary import Verdict, judge

ALLOCATOR_ERROR = 0.05
"""Of reserved bytes: the limit to which docs/accuracy.md holds the model of the allocator."""
DATA_SHEET_ERROR = 0.159
"""Of a step's time by data sheets: the median of 29 published training steps
(`benchmarks/published_layouts.py`). Half of the predictions are further off."""
CALIBRATED_ERROR = 0.112
"""Of a step's time by a calibration: the median of eleven measured models
(`benchmarks/cpu_step_time.py`)."""


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """Bytes of the device that a run takes in all."""

    low_bytes: int
    """What is allocated at the peak, and the context: no allocator does with less. Of a run that
    ran out, with the request that was refused."""
    likely_bytes: int
    """What is reserved, the context and communicators."""
    high_bytes: int
    """The same with the error of the allocator's model."""
    capacity_bytes: int | None
    is_open: bool
    """The run ended for want of memory: what would have come after that request is not known."""
    claim: str
    """"fits", "close", "does not fit" or "unknown": "fits" is said outside of the range alone."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Seconds of the reported period, give or take the typical error of such predictions."""

    low_s: float
    likely_s: float
    high_s: float
    error: float
    basis: str
    """"data sheet", "calibrated", or "measured" by a profiler, without an error."""


def memory_range(ledger: Ledger) -> MemoryRange:
    """Of the whole run."""
    verdict = judge(ledger)
    besides = verdict.context_bytes + verdict.communicators.bytes
    refusal = ledger.trace.final_refusal
    allocated_bytes, reserved_bytes = verdict.peak_bytes, verdict.reserved_bytes
    if refusal is not None:
        allocated_bytes = max(allocated_bytes, refusal.allocated_bytes + refusal.requested_bytes)
        reserved_bytes = max(reserved_bytes, refusal.reserved_bytes + refusal.requested_bytes)
    high_bytes = round(reserved_bytes * (1 + ALLOCATOR_ERROR)) + besides
    return MemoryRange(
        low_bytes=allocated_bytes + verdict.context_bytes,
        likely_bytes=reserved_bytes + besides,
        high_bytes=high_bytes,
        capacity_bytes=verdict.capacity_bytes,
        is_open=refusal is not None,
        claim=_claim(verdict, high_bytes),
    )


def _claim(verdict: Verdict, high_bytes: int) -> str:
    if verdict.fits is None or verdict.capacity_bytes is None:
        return "unknown"
    if not verdict.fits:
        return "does not fit"
    return "fits" if high_bytes <= verdict.capacity_bytes else "close"


def time_range(ledger: Ledger) -> TimeRange | None:
    """None without times."""
    roofline, step_s = ledger.roofline, ledger.step_s
    if roofline is None or step_s is None:
        return None
    if ledger.is_measured:
        return TimeRange(step_s, step_s, step_s, 0.0, "measured")
    is_calibrated = roofline.calibration is not None
    error = CALIBRATED_ERROR if is_calibrated else DATA_SHEET_ERROR
    basis = "calibrated" if is_calibrated else "data sheet"
    return TimeRange(step_s * (1 - error), step_s, step_s * (1 + error), error, basis)

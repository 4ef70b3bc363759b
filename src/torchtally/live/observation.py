"""What is seen of a training's step."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepObservation:
    """A line of a log or a profiler's trace. None is unknown."""

    step: int | None = None
    rank: int | None = None
    """Where the line or the trace names it."""
    step_s: float | None = None
    tokens_per_s: float | None = None
    """Of all ranks."""
    device_tokens_per_s: float | None = None
    mfu: float | None = None
    """A fraction, by the training's own convention."""
    peak_bytes: int | None = None
    """Allocated at most."""
    reserved_bytes: int | None = None
    """In the allocator's segments at most."""
    idle_share: float | None = None
    """Of the step's time, in which a profiler saw the device idle."""
    logged_at_s: float | None = None
    """When, by the clock of whoever wrote it; differences alone mean something."""
    is_profiled: bool = False
    is_end: bool = False
    """The training has ended, and this is its mean step."""


def positive(value: object) -> float | None:
    """None for what is no finite number above zero: nanoGPT's MFU is -100 % before it is known."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and number > 0 else None

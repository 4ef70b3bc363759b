"""A step that is measured against one that was predicted."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from torchtally.live.prediction import UNPREDICTED, PredictedStep

RECENT = 5
"""Steps whose median is held against the prediction."""
LEAST_RECENT = 3
"""Fewer may be an evaluation's or a checkpoint's."""
MOST_KEPT = 100_000
"""Steps of which a median is taken."""


class Deviation(StrEnum):
    """Respect in which a training is not as predicted."""

    SLOWER = "slower"
    FASTER = "faster"
    MORE_MEMORY = "more memory"
    LESS_MEMORY = "less memory"

    @property
    def is_memory(self) -> bool:
        return self in (Deviation.MORE_MEMORY, Deviation.LESS_MEMORY)

    @property
    def sign(self) -> int:
        return 1 if self in (Deviation.SLOWER, Deviation.MORE_MEMORY) else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepComparison:
    """A step's time and the peaks so far, and their prediction. None is unknown."""

    step_s: float | None = None
    peak_bytes: int | None = None
    reserved_bytes: int | None = None
    predicted: PredictedStep = UNPREDICTED
    is_same_chip: bool = True
    """The prediction is of the measured device: times and MFU can be compared."""

    @property
    def mfu(self) -> float | None:
        """MFU as a fraction, by the prediction's count of FLOPs."""
        return self.predicted.mfu_at(self.step_s) if self.is_same_chip else None

    @property
    def time_deviation(self) -> float | None:
        """Share by which the step takes longer than predicted: 0.1 is ten percent."""
        return _excess(self.step_s, self.predicted.step_s) if self.is_same_chip else None

    @property
    def memory(self) -> tuple[int | None, int | None]:
        """(measured, predicted) peak: allocated where that is known, else reserved."""
        if self.peak_bytes is None and self.reserved_bytes is not None:
            return self.reserved_bytes, self.predicted.reserved_bytes
        return self.peak_bytes, self.predicted.peak_bytes

    @property
    def memory_deviation(self) -> float | None:
        """Share by which the peak is above the predicted one."""
        return _excess(*self.memory)

    def of(self, kind: Deviation) -> tuple[float | None, float | None]:
        """(share by which it deviates, error that such predictions have)"""
        if kind.is_memory:
            return self.memory_deviation, self.predicted.memory_error
        return self.time_deviation, self.predicted.time_error

    def deviates(self, kind: Deviation) -> bool:
        """Whether it is off beyond the error of the prediction."""
        share, error = self.of(kind)
        return share is not None and error is not None and kind.sign * share > error


def _excess(measured: float | None, predicted: float | None) -> float | None:
    return None if measured is None or not predicted else measured / predicted - 1


def recent_steps(most: int = MOST_KEPT) -> "deque[float]":
    """Queue of the last steps' figures."""
    return deque(maxlen=most)


@dataclass(slots=True)
class TimedSteps:
    """Steps so far and what is predicted of them. Knows no clock and no device."""

    predicted: PredictedStep = UNPREDICTED
    is_same_chip: bool = True
    steps_s: deque[float] = field(default_factory=recent_steps)
    """Without the first, which compiles and tries out kernels."""
    recent_s: deque[float] = field(default_factory=lambda: recent_steps(RECENT))
    peak_bytes: int | None = None
    reserved_bytes: int | None = None
    told: set[Deviation] = field(default_factory=set)

    @property
    def median_s(self) -> float | None:
        return median(self.steps_s) if self.steps_s else None

    def add(self, step_s: float) -> None:
        self.steps_s.append(step_s)
        self.recent_s.append(step_s)

    def recent(self, least: int = LEAST_RECENT) -> StepComparison:
        """The last few steps, which decide whether something deviates; no time of fewer."""
        return self.compare(median(self.recent_s) if len(self.recent_s) >= least else None)

    def compare(self, step_s: float | None) -> StepComparison:
        """A step that takes so long, and the peaks so far."""
        return StepComparison(
            step_s=step_s,
            peak_bytes=self.peak_bytes,
            reserved_bytes=self.reserved_bytes,
            predicted=self.predicted,
            is_same_chip=self.is_same_chip,
        )

    def new_deviations(self, comparison: StepComparison) -> Iterator[Deviation]:
        """Kinds that were not told before."""
        for kind in Deviation:
            if kind not in self.told and comparison.deviates(kind):
                self.told.add(kind)
                yield kind


def values_of(comparison: StepComparison) -> dict[str, float | int]:
    """Measured and predicted under names side by side; what is unknown is left out.

    tally/step_s and tally/step_s_predicted in seconds, tally/mfu_percent, tally/peak_bytes and
    tally/reserved_bytes in the same way; tally/step_deviation and tally/peak_deviation are by how
    much more was measured than predicted, as a fraction.
    """
    values: dict[str, float | int | None] = {
        "step_deviation": comparison.time_deviation,
        "peak_deviation": comparison.memory_deviation,
    }
    for suffix, figures in (("", comparison), ("_predicted", comparison.predicted)):
        values |= {
            f"{name}{suffix}": getattr(figures, name)
            for name in ("step_s", "peak_bytes", "reserved_bytes")
        }
        values[f"mfu_percent{suffix}"] = None if figures.mfu is None else 100 * figures.mfu
    return {f"tally/{name}": value for name, value in values.items() if value is not None}

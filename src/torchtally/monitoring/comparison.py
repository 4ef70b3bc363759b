"""What was measured beside what was predicted, and what parted."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median

from torchtally.monitoring.prediction import StepPrediction
from torchtally.monitoring.stopwatch import MeasuredMemory
from torchtally.watch.expectation import ExpectedStep
from torchtally.watch.watcher import LEAST_RECENT, RECENT, more_than

MOST_SINCE = 1000
"""Steps between two logs of which the median is logged."""


NO_MEMORY = MeasuredMemory()
NO_STEP = ExpectedStep(file="")


class Parting(StrEnum):
    """Respect in which a training is not as predicted."""

    SLOWER = "slower"
    FASTER = "faster"
    MORE_MEMORY = "more memory"
    LESS_MEMORY = "less memory"


MEMORY_KINDS = (Parting.MORE_MEMORY, Parting.LESS_MEMORY)
SIGNS = {Parting.SLOWER: 1, Parting.FASTER: -1, Parting.MORE_MEMORY: 1, Parting.LESS_MEMORY: -1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A median step and the peaks so far beside the prediction. None is unknown."""

    step_s: float | None = None
    mfu: float | None = None
    """A fraction, by the prediction's count of FLOPs."""
    memory: MeasuredMemory = NO_MEMORY
    prediction: StepPrediction | None = None
    is_same_chip: bool = True

    @property
    def expected(self) -> ExpectedStep:
        """What is predicted; all of it unknown without a prediction."""
        return NO_STEP if self.prediction is None else self.prediction.step

    @property
    def time_parted(self) -> float | None:
        """Share by which a step takes longer than predicted for this chip: 0.1 is ten percent."""
        return more_than(self.step_s, self.expected.step_s) if self.is_same_chip else None

    @property
    def memory_parted(self) -> float | None:
        """Share by which more is allocated at most than predicted."""
        return more_than(self.memory.peak_bytes, self.expected.peak_bytes)

    def of(self, kind: Parting) -> tuple[float | None, float | None]:
        """(by how much it parted, the error that such predictions have)"""
        if self.prediction is None:
            return None, None
        if kind in MEMORY_KINDS:
            return self.memory_parted, self.prediction.memory_error
        return self.time_parted, self.prediction.time_error

    def has_parted(self, kind: Parting) -> bool:
        """Whether it is off beyond the error of the prediction."""
        parted, error = self.of(kind)
        return parted is not None and error is not None and SIGNS[kind] * parted > error


@dataclass(slots=True)
class MonitoredSteps:
    """Knows no clock and no device: it is told what was measured."""

    prediction: StepPrediction | None = None
    is_same_chip: bool = True
    """The prediction is of this machine's device: its times and its MFU can be compared."""
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    since_log_s: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_SINCE))
    told: set[Parting] = field(default_factory=set)

    def time(self, step_s: float) -> None:
        """A step took so long; the first one compiles and tries out kernels, and is left out."""
        self.recent_s.append(step_s)
        self.since_log_s.append(step_s)

    @property
    def is_settled(self) -> bool:
        """Enough steps are timed to be held against the prediction."""
        return len(self.recent_s) >= LEAST_RECENT

    def recent(self, memory: MeasuredMemory) -> Compared:
        """The last few steps, which decide whether something parted."""
        return self._compare(self.recent_s if self.is_settled else (), memory)

    def since_log(self, memory: MeasuredMemory) -> Compared:
        """All steps since this was last asked for."""
        compared = self._compare(self.since_log_s, memory)
        self.since_log_s.clear()
        return compared

    def partings(self, memory: MeasuredMemory) -> Iterator[tuple[Parting, Compared]]:
        """What has parted and was not told before, each kind once."""
        if not self.is_settled:
            return
        compared = self.recent(memory)
        for kind in Parting:
            if kind not in self.told and compared.has_parted(kind):
                self.told.add(kind)
                yield kind, compared

    def _compare(self, steps_s: "deque[float] | tuple[()]", memory: MeasuredMemory) -> Compared:
        step_s = median(steps_s) if steps_s else None
        compared = Compared(
            step_s=step_s, memory=memory, prediction=self.prediction, is_same_chip=self.is_same_chip
        )
        mfu = compared.expected.mfu_at(step_s) if self.is_same_chip else None
        return replace(compared, mfu=mfu)


PREFIX = "tally/"
PREDICTED = "_predicted"


def values_of(compared: Compared) -> dict[str, float | int]:
    """Measured and predicted under names side by side; what is unknown is left out.

    tally/step_s and tally/step_s_predicted in seconds, tally/mfu_percent, tally/peak_bytes and
    tally/reserved_bytes in the same way; tally/step_parted and tally/peak_parted are by how much
    more was measured than predicted, as a fraction.
    """
    expected, memory = compared.expected, compared.memory
    measured = {
        "step_s": compared.step_s,
        "mfu_percent": _percent(compared.mfu),
        "peak_bytes": memory.peak_bytes,
        "reserved_bytes": memory.reserved_bytes,
        "step_parted": compared.time_parted,
        "peak_parted": compared.memory_parted,
    }
    predicted = {
        "step_s": expected.step_s,
        "mfu_percent": _percent(expected.mfu),
        "peak_bytes": expected.peak_bytes,
        "reserved_bytes": expected.reserved_bytes,
    }
    names = {PREFIX + name: value for name, value in measured.items()}
    names |= {PREFIX + name + PREDICTED: value for name, value in predicted.items()}
    return {name: value for name, value in names.items() if value is not None}


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction

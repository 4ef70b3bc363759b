"""What was seen of one log or one worker, and the times of its steps."""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from torchtally.live.comparison import StepComparison, TimedSteps, recent_steps
from torchtally.live.observation import StepObservation

LEAST_BETWEEN_S = 5.0
"""Between two arrivals that a step's time is taken from: looks at a log are half a second apart."""


class TimeOrigin(StrEnum):
    """Origin of a step's time."""

    LOG = "log"
    PROFILER = "profiler"
    TOKENS = "predicted tokens of a step over the logged tokens/s"
    STAMPS = "times that the lines are stamped with"
    ARRIVALS = "times at which the lines arrived"


@dataclass(slots=True)
class SourceRecord:
    """A log or a worker."""

    source: str
    steps: TimedSteps
    tokens_per_s: deque[float] = field(default_factory=recent_steps)
    logged_mfu: deque[float] = field(default_factory=recent_steps)
    observed: int = 0
    first_step: int | None = None
    last: StepObservation | None = None
    anchor: tuple[int, float] | None = None
    """A step whose line arrived while it was watched for, and when: times are taken from there."""
    seen_s: float = 0.0
    stride: int | None = None
    """Steps from one observation to the next."""
    interval_s: float | None = None
    slow: int = 0
    late: int = 0
    told_late_s: float = 0.0
    has_ended: bool = False
    mean_s: float | None = None
    """As the training itself told at its end."""

    @property
    def total(self) -> StepComparison:
        """The median of all steps."""
        median_s = self.steps.median_s
        return self.steps.compare(self.mean_s if median_s is None else median_s)

    @property
    def usual_s(self) -> float | None:
        """Seconds between two observations; None before that is known."""
        if self.stride is not None and self.steps.recent_s:
            return self.stride * median(self.steps.recent_s)
        return self.interval_s

    def step_time(
        self, seen: StepObservation, arrived_s: float | None
    ) -> tuple[float | None, TimeOrigin | None]:
        """Seconds of the step, by the best that is known of it."""
        if seen.step_s is not None:
            return seen.step_s, TimeOrigin.PROFILER if seen.is_profiled else TimeOrigin.LOG
        tokens, tokens_per_s = self.steps.predicted.tokens, self._logged_tokens_per_s(seen)
        if tokens and tokens_per_s is not None:
            return tokens / tokens_per_s, TimeOrigin.TOKENS
        stride = self._stride_to(seen)
        if stride is None:
            return None, None
        between_s = self._between_s(seen)
        if between_s is not None:
            return (between_s / stride, TimeOrigin.STAMPS) if between_s > 0 else (None, None)
        if arrived_s is None or seen.step is None or self.anchor is None:
            return None, None
        anchor_step, anchor_s = self.anchor
        if seen.step <= anchor_step or arrived_s - anchor_s < LEAST_BETWEEN_S:
            return None, None
        return (arrived_s - anchor_s) / (seen.step - anchor_step), TimeOrigin.ARRIVALS

    def step_tokens_per_s(self, seen: StepObservation, step_s: float | None) -> float | None:
        """Tokens per second of all ranks: as logged, else as predicted of a step."""
        tokens, logged = self.steps.predicted.tokens, self._logged_tokens_per_s(seen)
        return tokens / step_s if logged is None and tokens and step_s else logged

    def keep(self, seen: StepObservation, arrived_s: float | None, now_s: float) -> None:
        """Add an observation. `arrived_s`: when its line was written; None where it was there."""
        between_s = self._between_s(seen)
        if between_s is not None and between_s > 0:
            self.interval_s = between_s
        self.stride = self._stride_to(seen)
        self.observed += 1
        if self.first_step is None:
            self.first_step = seen.step
        self.last, self.seen_s, self.told_late_s, self.has_ended = seen, now_s, 0.0, False
        if arrived_s is None or seen.step is None:
            self.anchor = None
        elif (
            self.anchor is None
            or seen.step <= self.anchor[0]
            or arrived_s - self.anchor[1] >= LEAST_BETWEEN_S
        ):
            self.anchor = seen.step, arrived_s
        if seen.mfu is not None:
            self.logged_mfu.append(seen.mfu)
        self.steps.peak_bytes = _most(seen.peak_bytes, self.steps.peak_bytes)
        self.steps.reserved_bytes = _most(seen.reserved_bytes, self.steps.reserved_bytes)

    def _logged_tokens_per_s(self, seen: StepObservation) -> float | None:
        # One device's rate is that of all only where a prediction says how many there are.
        if seen.tokens_per_s is not None or seen.device_tokens_per_s is None:
            return seen.tokens_per_s
        predicted = self.steps.predicted
        return seen.device_tokens_per_s * predicted.ranks if predicted.file else None

    def _stride_to(self, seen: StepObservation) -> int | None:
        """Steps since the last observation; None where unknown, or where the run went back."""
        last = None if self.last is None else self.last.step
        return None if last is None or seen.step is None else max(seen.step - last, 0) or None

    def _between_s(self, seen: StepObservation) -> float | None:
        """Seconds since the last observation, by the stamps of both."""
        last_s = None if self.last is None else self.last.logged_at_s
        return None if last_s is None or seen.logged_at_s is None else seen.logged_at_s - last_s


def _most(value: int | None, before: int | None) -> int | None:
    return before if value is None else max(value, before or 0)

"""Observations against the expectation: what parted from it, and what is late."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median

from torchtally.watch.expectation import ExpectedStep
from torchtally.watch.observation import StepObservation

RECENT = 5
"""Steps whose median is held against the prediction."""
LEAST_RECENT = 3
"""Of a log: fewer may be an evaluation's or a checkpoint's."""
SLOW = 1.5
"""Times the median of recent steps."""
LATE = 3.0
"""Times the expected interval, and at least `LEAST_LATE_S`."""
LEAST_LATE_S = 10.0
LESS_LATE = 2.0
"""Times the wait that was told last, until a step that is still missing is told again."""
LEAST_BETWEEN_S = 5.0
"""Between two arrivals that a step's time is taken from: looks at a log are half a second apart."""
MOST_KEPT = 100_000
"""Steps of which the summary's medians are."""


class TimeOrigin(StrEnum):
    """Where a step's time comes from."""

    LOG = "log"
    PROFILER = "profiler"
    TOKENS = "predicted tokens of a step over the logged tokens/s"
    STAMPS = "times that the lines are stamped with"
    ARRIVALS = "times at which the lines arrived"


class Happening(StrEnum):
    STEP = "step"
    PARTED = "parted"
    AGREED = "agreed"
    LATE = "late"
    ENDED = "ended"
    NOTE = "note"


NOTHING = StepObservation()


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """Something to tell."""

    what: Happening
    source: str
    """The log, or a worker's traces."""
    file: str = ""
    observation: StepObservation = NOTHING
    step_s: float | None = None
    """Of a step as measured or derived; of `PARTED` and `AGREED` the recent median."""
    origin: TimeOrigin | None = None
    tokens_per_s: float | None = None
    expected: ExpectedStep | None = None
    parted: float | None = None
    """By how much more than predicted it is: 0.1 is ten percent."""
    is_memory: bool = False
    """`PARTED` is the peak of memory."""
    slow: float | None = None
    """Times the recent median, of a step much slower than that."""
    waited_s: float | None = None
    usual_s: float | None = None
    """Of `LATE`: since the last step, and as long as it usually takes."""
    text: str = ""


@dataclass(slots=True)
class SourceRecord:
    """What was seen of one log or one worker."""

    source: str
    expected: ExpectedStep | None
    steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    """Without the first of a log, which compiles and tries out kernels."""
    tokens_per_s: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    logged_mfu: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_KEPT))
    recent_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    observed: int = 0
    first_step: int | None = None
    last: StepObservation | None = None
    anchor: tuple[int, float] | None = None
    """A step whose line arrived while it was watched for, and when: times are taken from there."""
    seen_s: float = 0.0
    stride: int | None = None
    interval_s: float | None = None
    peak_bytes: int | None = None
    reserved_bytes: int | None = None
    slow: int = 0
    late: int = 0
    told_late_s: float = 0.0
    is_parted: bool = False
    is_memory_parted: bool = False
    has_ended: bool = False
    mean_s: float | None = None
    """As the training itself told at its end."""

    @property
    def median_s(self) -> float | None:
        return median(self.steps_s) if self.steps_s else self.mean_s

    @property
    def parted(self) -> float | None:
        """Share by which the median step takes longer than predicted."""
        return more_than(self.median_s, None if self.expected is None else self.expected.step_s)

    @property
    def memory_parted(self) -> float | None:
        measured, expected = memory_of(self)
        return more_than(measured, expected)

    @property
    def usual_s(self) -> float | None:
        """Seconds between two observations; None before that is known."""
        if self.stride is not None and self.recent_s:
            return self.stride * median(self.recent_s)
        return self.interval_s


def more_than(measured: float | None, expected: float | None) -> float | None:
    return None if measured is None or not expected else measured / expected - 1


def memory_of(record: SourceRecord) -> tuple[int | None, int | None]:
    """(measured, predicted) peak: allocated where that is known, else reserved."""
    expected = record.expected
    if record.peak_bytes is not None:
        return record.peak_bytes, None if expected is None else expected.peak_bytes
    return record.reserved_bytes, None if expected is None else expected.reserved_bytes


class Watcher:
    """Knows no file and no clock: it is told what was seen, and when."""

    def __init__(self, expected: ExpectedStep | None, tolerance: float) -> None:
        self.expected, self.tolerance = expected, tolerance
        self.records: dict[str, SourceRecord] = {}

    def expect(self, source: str, expected: ExpectedStep) -> None:
        """What a log itself predicts, where nothing else was given."""
        if self.expected is None:
            self._record(source).expected = expected

    def see(
        self, source: str, observation: StepObservation, now_s: float, *,
        file: str = "", is_backlog: bool = False,
    ) -> Iterator[WatchEvent]:  # fmt: skip
        """A line or a trace. `is_backlog`: it was there before, so when it arrived says nothing."""
        if observation.rank is not None:
            source = f"{source}, rank {observation.rank}"
        record = self._record(source)
        if observation.is_end:
            record.has_ended, record.mean_s = True, observation.step_s
            parted = more_than(observation.step_s, self._step_s(record))
            yield self._event(Happening.ENDED, record, step_s=observation.step_s, parted=parted)
            return
        step_s, origin = self._step_time(record, observation, None if is_backlog else now_s)
        # The first step of a log compiles and tries out kernels; a profiler waits until then.
        is_counted = observation.is_profiled or record.observed > 0
        slow = None
        if is_counted and step_s is not None:
            if len(record.recent_s) >= LEAST_RECENT and step_s > SLOW * median(record.recent_s):
                slow = step_s / median(record.recent_s)
                record.slow += 1
            record.steps_s.append(step_s)
            record.recent_s.append(step_s)
        self._keep(record, observation, now_s, is_backlog=is_backlog)
        tokens_per_s = self._tokens_per_s(record, observation, step_s)
        if tokens_per_s is not None and is_counted:
            record.tokens_per_s.append(tokens_per_s)
        yield self._event(
            Happening.STEP, record, file=file, observation=observation, step_s=step_s,
            origin=origin, tokens_per_s=tokens_per_s, slow=slow,
            parted=more_than(step_s, self._step_s(record)),
        )  # fmt: skip
        yield from self._judge(record, observation)

    def missing(self, now_s: float) -> Iterator[WatchEvent]:
        """Steps that should have come by now."""
        for record in self.records.values():
            usual_s = record.usual_s
            if usual_s is None or record.has_ended or record.last is None:
                continue
            waited_s = now_s - record.seen_s
            bound_s = max(LATE * usual_s, LEAST_LATE_S, LESS_LATE * record.told_late_s)
            if waited_s > bound_s:
                record.late += not record.told_late_s
                record.told_late_s = waited_s
                yield self._event(
                    Happening.LATE, record, observation=record.last, waited_s=waited_s,
                    usual_s=usual_s,
                )  # fmt: skip

    def note(self, source: str, text: str) -> WatchEvent:
        return WatchEvent(what=Happening.NOTE, source=source, text=text)

    def _record(self, source: str) -> SourceRecord:
        if source not in self.records:
            self.records[source] = SourceRecord(source, self.expected)
        return self.records[source]

    def _step_s(self, record: SourceRecord) -> float | None:
        return None if record.expected is None else record.expected.step_s

    def _step_time(
        self, record: SourceRecord, seen: StepObservation, arrived_s: float | None
    ) -> tuple[float | None, TimeOrigin | None]:
        """The step's time, by the best that is known of it."""
        if seen.step_s is not None:
            return seen.step_s, TimeOrigin.PROFILER if seen.is_profiled else TimeOrigin.LOG
        expected = record.expected
        if expected is not None and expected.tokens:
            if seen.tokens_per_s is not None:
                return expected.tokens / seen.tokens_per_s, TimeOrigin.TOKENS
            if seen.device_tokens_per_s is not None:
                all_tokens_per_s = seen.device_tokens_per_s * expected.ranks
                return expected.tokens / all_tokens_per_s, TimeOrigin.TOKENS
        stride = stride_of(record.last, seen)
        if stride is None or record.last is None:
            return None, None
        if seen.logged_at_s is not None and record.last.logged_at_s is not None:
            between_s = seen.logged_at_s - record.last.logged_at_s
            return (between_s / stride, TimeOrigin.STAMPS) if between_s > 0 else (None, None)
        if arrived_s is None or seen.step is None or record.anchor is None:
            return None, None
        anchor_step, anchor_s = record.anchor
        if seen.step <= anchor_step or arrived_s - anchor_s < LEAST_BETWEEN_S:
            return None, None
        return (arrived_s - anchor_s) / (seen.step - anchor_step), TimeOrigin.ARRIVALS

    def _tokens_per_s(
        self, record: SourceRecord, seen: StepObservation, step_s: float | None
    ) -> float | None:
        if seen.tokens_per_s is not None:
            return seen.tokens_per_s
        expected = record.expected
        if seen.device_tokens_per_s is not None and expected is not None:
            return seen.device_tokens_per_s * expected.ranks
        if expected is not None and expected.tokens and step_s:
            return expected.tokens / step_s
        return None

    def _keep(
        self, record: SourceRecord, seen: StepObservation, now_s: float, *, is_backlog: bool
    ) -> None:
        last = record.last
        record.stride = stride_of(last, seen)
        if last is not None and seen.logged_at_s is not None and last.logged_at_s is not None:
            record.interval_s = max(seen.logged_at_s - last.logged_at_s, 0.0) or record.interval_s
        record.observed += 1
        if record.first_step is None:
            record.first_step = seen.step
        record.last, record.seen_s, record.told_late_s = seen, now_s, 0.0
        if is_backlog or seen.step is None:
            record.anchor = None
        elif (
            record.anchor is None
            or seen.step <= record.anchor[0]
            or now_s - record.anchor[1] >= LEAST_BETWEEN_S
        ):
            record.anchor = seen.step, now_s
        record.has_ended = False
        if seen.mfu is not None:
            record.logged_mfu.append(seen.mfu)
        if seen.peak_bytes is not None:
            record.peak_bytes = max(seen.peak_bytes, record.peak_bytes or 0)
        if seen.reserved_bytes is not None:
            record.reserved_bytes = max(seen.reserved_bytes, record.reserved_bytes or 0)

    def _judge(self, record: SourceRecord, seen: StepObservation) -> Iterator[WatchEvent]:
        least = 1 if seen.is_profiled else LEAST_RECENT
        if len(record.recent_s) >= least:
            recent_s = median(record.recent_s)
            parted = more_than(recent_s, self._step_s(record))
            is_parted = parted is not None and abs(parted) > self.tolerance
            if is_parted != record.is_parted:
                record.is_parted = is_parted
                yield self._event(
                    Happening.PARTED if is_parted else Happening.AGREED, record,
                    observation=seen, step_s=recent_s, parted=parted,
                )  # fmt: skip
        parted = record.memory_parted
        # A peak grows: what is below the prediction may still come to it.
        if parted is not None and parted > self.tolerance and not record.is_memory_parted:
            record.is_memory_parted = True
            yield self._event(
                Happening.PARTED, record, observation=seen, parted=parted, is_memory=True
            )

    def _event(self, what: Happening, record: SourceRecord, **values: object) -> WatchEvent:
        return WatchEvent(what=what, source=record.source, expected=record.expected, **values)  # type: ignore[arg-type]


def stride_of(last: StepObservation | None, seen: StepObservation) -> int | None:
    """Steps from one observation to the next; None where that is unknown, or the run went back."""
    if last is None or last.step is None or seen.step is None or seen.step <= last.step:
        return None
    return seen.step - last.step

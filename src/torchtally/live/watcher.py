"""Observations against the prediction: which deviate from it, and which are late."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from torchtally.live.comparison import LEAST_RECENT, Deviation, StepComparison, TimedSteps
from torchtally.live.observation import StepObservation
from torchtally.live.prediction import PredictedStep
from torchtally.live.record import SourceRecord, TimeOrigin

SLOW = 1.5
"""Times the median of recent steps."""
LATE = 3.0
"""Times the expected interval, and at least `LEAST_LATE_S`."""
LEAST_LATE_S = 10.0
LESS_LATE = 2.0
"""Times the wait that was told last, until a step that is still missing is told again."""

TIMES = frozenset({Deviation.SLOWER, Deviation.FASTER})
NOTHING = StepObservation()
NOT_COMPARED = StepComparison()


class Happening(StrEnum):
    STEP = "step"
    DEVIATES = "deviates"
    AGREED = "agreed"
    LATE = "late"
    ENDED = "ended"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """Something to tell."""

    what: Happening
    source: str
    """The log, or a worker's traces."""
    file: str = ""
    observation: StepObservation = NOTHING
    comparison: StepComparison = NOT_COMPARED
    """The step as measured or derived; of `DEVIATES` and `AGREED` the recent median."""
    deviation: Deviation | None = None
    """Of `DEVIATES`: in which respect."""
    origin: TimeOrigin | None = None
    tokens_per_s: float | None = None
    slow: float | None = None
    """Times the recent median, of a step much slower than that."""
    waited_s: float | None = None
    usual_s: float | None = None
    """Of `LATE`: since the last step, and as long as it usually takes."""
    text: str = ""

    @property
    def mfu(self) -> float | None:
        """MFU by the convention of the prediction where there is one, else as it was logged."""
        own = self.comparison.mfu
        return self.observation.mfu if own is None else own


class Watcher:
    """Knows no file and no clock: it is told what was seen, and when."""

    def __init__(self, predicted: PredictedStep, tolerance: float) -> None:
        self.predicted, self.tolerance = predicted.within(tolerance), tolerance
        self.records: dict[str, SourceRecord] = {}

    def expect(self, source: str, predicted: PredictedStep) -> None:
        """What a log itself predicts, where nothing else was given."""
        if predicted.file and not self.predicted.file:
            self._record(source).steps.predicted = predicted.within(self.tolerance)

    def see(
        self, source: str, observation: StepObservation, now_s: float, *,
        file: str = "", is_backlog: bool = False,
    ) -> Iterator[WatchEvent]:  # fmt: skip
        """A line or a trace. `is_backlog`: it was there before, so when it arrived says nothing."""
        if observation.rank is not None:
            source = f"{source}, rank {observation.rank}"
        record = self._record(source)
        source, steps = record.source, record.steps
        if observation.is_end:
            record.has_ended, record.mean_s = True, observation.step_s
            ended = steps.compare(observation.step_s)
            yield WatchEvent(what=Happening.ENDED, source=source, comparison=ended)
            return
        arrived_s = None if is_backlog else now_s
        step_s, origin = record.step_time(observation, arrived_s)
        # The first step of a log compiles and tries out kernels; a profiler waits until then.
        is_counted = observation.is_profiled or record.observed > 0
        slow = None
        if is_counted and step_s is not None:
            recent_s = steps.recent().step_s
            if recent_s is not None and step_s > SLOW * recent_s:
                slow = step_s / recent_s
                record.slow += 1
            steps.add(step_s)
        record.keep(observation, arrived_s, now_s)
        tokens_per_s = record.step_tokens_per_s(observation, step_s)
        if tokens_per_s is not None and is_counted:
            record.tokens_per_s.append(tokens_per_s)
        yield WatchEvent(
            what=Happening.STEP, source=source, file=file, observation=observation,
            comparison=steps.compare(step_s), origin=origin, tokens_per_s=tokens_per_s, slow=slow,
        )  # fmt: skip
        yield from self._judge(record, observation)

    def missing(self, now_s: float) -> Iterator[WatchEvent]:
        """Steps that should have come by now."""
        for record in self.records.values():
            usual_s = record.usual_s
            if usual_s is None or record.has_ended or record.last is None:
                continue
            waited_s = now_s - record.seen_s
            if waited_s > max(LATE * usual_s, LEAST_LATE_S, LESS_LATE * record.told_late_s):
                record.late += not record.told_late_s
                record.told_late_s = waited_s
                yield WatchEvent(
                    what=Happening.LATE,
                    source=record.source,
                    observation=record.last,
                    comparison=record.steps.compare(None),
                    waited_s=waited_s,
                    usual_s=usual_s,
                )

    def note(self, source: str, text: str) -> WatchEvent:
        return WatchEvent(what=Happening.NOTE, source=source, text=text)

    def _record(self, source: str) -> SourceRecord:
        if source not in self.records:
            # A peak grows: what is below the prediction may still come to it.
            steps = TimedSteps(self.predicted, told={Deviation.LESS_MEMORY})
            self.records[source] = SourceRecord(source, steps)
        return self.records[source]

    def _judge(self, record: SourceRecord, seen: StepObservation) -> Iterator[WatchEvent]:
        steps = record.steps
        recent = steps.recent(1 if seen.is_profiled else LEAST_RECENT)

        def event(what: Happening, deviation: Deviation | None = None) -> WatchEvent:
            return WatchEvent(
                what=what,
                source=record.source,
                observation=seen,
                comparison=recent,
                deviation=deviation,
            )

        for deviation in steps.new_deviations(recent):
            yield event(Happening.DEVIATES, deviation)
        if (
            recent.step_s is not None
            and steps.told & TIMES
            and not any(map(recent.deviates, TIMES))
        ):
            steps.told -= TIMES
            yield event(Happening.AGREED)

"""When each operator of a trace runs on a chip: a column beside the entries of a ledger."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import fsum
from typing import NamedTuple

from torchtally.errors import UsageError
from torchtally.ledger.pricing import CallCost
from torchtally.ledger.total import Entry, Untimed
from torchtally.timing.ranks import Span
from torchtally.timing.roofline import Roofline
from torchtally.timing.roofline.shared_power import Draw, SharedPower, seconds_at
from torchtally.timing.schedule import CallTime, TimedOps, Timetable, call_time, no_time, schedule
from torchtally.timing.slots import NOTHING, Slot
from torchtally.trace import Call, Phase, Trace
from torchtally.work import Kind

NO_SPAN = Span(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a trace on one chip."""

    roofline: Roofline | None
    """None: no times, every slot is empty."""
    slots: tuple[Slot, ...]
    """One per op of the trace."""
    untimed: tuple[Untimed, ...] = ()
    """Of the reported period, most frequent first."""
    stuck: int = 0
    """Collectives and messages to which a rank that was timed, too, never came."""
    spans: tuple[Span, ...] = ()
    """One per op of the trace, where streams run beside each other; see `ledger/spans.py`."""
    is_evaluation_apart: bool = False
    """Evaluation is timed as if training was not there, and training as if evaluation was not."""
    is_measured: bool = False
    """By a profiler; the roofline is what they are held against."""
    kernels_s: tuple[float, ...] = ()
    """Of measured times, one per op of the trace: what its kernels would take by the roofline; 0
    where that is unknown."""

    @property
    def is_timed(self) -> bool:
        return self.is_measured or self.roofline is not None

    def seconds(self, entries: Iterable[Entry]) -> float:
        """What these take, each from the end of the one before it to its own end."""
        return fsum(self.slots[entry.number].seconds * entry.share for entry in entries)

    def predicted_s(self, entries: Iterable[Entry]) -> float:
        """Seconds that the kernels of measured entries would take by the roofline."""
        if not self.kernels_s:
            return 0.0
        return fsum(self.kernels_s[entry.number] * entry.share for entry in entries)

    def kernel_s(self, entries: Iterable[Entry]) -> float:
        """The part in which the device runs kernels."""
        return fsum(self.slots[entry.number].kernel_s * entry.share for entry in entries)

    def exposed_s(self, collectives: Iterable[Entry]) -> float:
        """The part in which they run and nothing computes."""
        return fsum(self.slots[entry.number].exposed_s for entry in collectives)


def no_times(trace: Trace) -> Times:
    return Times(None, (NOTHING,) * len(trace.ops))


class Untold(NamedTuple):
    """A rank without times."""

    trace: Trace
    costs: Sequence[CallCost]
    reported: Iterable[Entry]
    """The entries whose missing times are listed."""


def predict_times(ranks: Sequence[Untold], roofline: Roofline) -> list[Times]:
    """Times of one rank, or of several that ran together."""
    rooflines = [roofline.within(rank.trace.world, rank.trace.groups) for rank in ranks]
    answers = [
        _call_times(rank.trace, rank.costs, own) for rank, own in zip(ranks, rooflines, strict=True)
    ]
    table = _timetable(
        [rank.trace for rank in ranks],
        [[time for time, _ in of_rank] for of_rank in answers],
        roofline,
    )
    return [
        Times(
            own,
            tuple(table.slots[place]),
            _untimed_reasons(rank.reported, [failure for _, failure in of_rank]),
            table.stuck,
            tuple(table.spans[place]) if table.spans else (),
            is_evaluation_apart=len(ranks) == 1,
        )
        for place, (rank, own, of_rank) in enumerate(zip(ranks, rooflines, answers, strict=True))
    ]


def _untimed_reasons(reported: Iterable[Entry], failures: Sequence[str]) -> tuple[Untimed, ...]:
    missing = Counter(
        (entry.call.name, failure)
        for entry in reported
        # an op without a rule has no time either, and is listed as uncounted already
        if (failure := failures[entry.op.call]) and entry.kind is not Kind.UNCOUNTED
    )
    return tuple(Untimed(op, count, reason) for (op, reason), count in missing.most_common())


def _timetable(
    traces: Sequence[Trace], times: Sequence[Sequence[CallTime]], roofline: Roofline
) -> Timetable:
    """Training and evaluation each as if the other was not there: neither fills a queue that the
    other one would find filled. Ranks that wait for each other do all in one row.
    """
    evaluation = Phase.EVALUATION
    columns = [[NOTHING] * len(trace.ops) for trace in traces]
    spans: list[list[Span]] = []
    stuck = 0
    for chosen in ((False,), (True,)) if len(traces) == 1 else ((False, True),):
        places = [
            [n for n, op in enumerate(trace.ops) if (op.phase is evaluation) in chosen]
            for trace in traces
        ]
        if not any(places):
            continue
        timetable = schedule(
            [
                TimedOps(trace, [trace.ops[place] for place in part], of_calls)
                for trace, part, of_calls in zip(traces, places, times, strict=True)
            ],
            roofline,
        )
        stuck += timetable.stuck
        for column, part, slots in zip(columns, places, timetable.slots, strict=True):
            for place, slot in zip(part, slots, strict=True):
                column[place] = slot
        if timetable.spans and not spans:
            spans = [[NO_SPAN] * len(trace.ops) for trace in traces]
        for placed, part, played in zip(spans, places, timetable.spans, strict=False):
            for place, span in zip(part, played, strict=True):
                placed[place] = span
    return Timetable(tuple(columns), stuck, tuple(spans))


def _call_times(
    trace: Trace, costs: Sequence[CallCost], roofline: Roofline
) -> list[tuple[CallTime, str]]:
    """The same of all calls of a trace, whose kernels share the chip's power where that matters."""
    answers = [_call_time(*pair, roofline) for pair in zip(trace.calls, costs, strict=True)]
    if not roofline.shares_power:
        return answers
    draws = [
        roofline.draw(call, cost.kind, cost.exact, time.kernel)
        for call, cost, (time, _) in zip(trace.calls, costs, answers, strict=True)
    ]
    power = SharedPower()
    for number, times in Counter(op.call for op in trace.ops).items():
        power.add(draws[number], times)
    return [
        (_at_pace(power.pace, time, draw), failure)
        for (time, failure), draw in zip(answers, draws, strict=True)
    ]


def _at_pace(pace: float, time: CallTime, draw: Draw | None) -> CallTime:
    seconds = seconds_at(pace, time.kernel.seconds, draw)
    return time._replace(kernel=replace(time.kernel, seconds=seconds))


def _call_time(call: Call, cost: CallCost, roofline: Roofline) -> tuple[CallTime, str]:
    """(the time of a call, why it is unknown)."""
    kind = cost.kind
    if kind.is_free or cost.failure:
        return no_time(call, kind), cost.failure
    try:
        return call_time(call, kind, cost.exact, roofline), ""
    except UsageError as error:
        return no_time(call, kind), str(error)
    except Exception as error:  # a call whose shapes no model foresaw
        return no_time(call, kind), f"its time: {type(error).__name__}: {error}"

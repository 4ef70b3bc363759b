"""When each operator of a trace runs on a chip: a column beside the entries of a ledger."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum

from torchtally.errors import UsageError
from torchtally.ledger.pricing import CallCost
from torchtally.ledger.total import Entry, Untimed
from torchtally.timing.roofline import Roofline
from torchtally.timing.schedule import CallTime, call_time, no_time, schedule
from torchtally.timing.slots import NOTHING, Slot
from torchtally.trace import Call, Phase, Trace
from torchtally.work import Kind


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a trace on one chip."""

    roofline: Roofline | None
    """None: no times, every slot is empty."""
    slots: tuple[Slot, ...]
    """One per op of the trace."""
    untimed: tuple[Untimed, ...] = ()
    """Of the reported period, most frequent first."""

    def seconds(self, entries: Iterable[Entry]) -> float:
        """What these take, each from the end of the one before it to its own end."""
        return fsum(self.slots[entry.number].seconds for entry in entries)

    def kernel_s(self, entries: Iterable[Entry]) -> float:
        """The part in which the device runs kernels."""
        return fsum(self.slots[entry.number].kernel_s for entry in entries)


def no_times(trace: Trace) -> Times:
    return Times(None, (NOTHING,) * len(trace.ops))


def predict_times(
    trace: Trace, costs: Sequence[CallCost], roofline: Roofline, reported: Iterable[Entry]
) -> Times:
    """`reported` are the entries whose missing times are listed."""
    roofline = roofline.within(trace.world, trace.groups)
    answers = [_call_time(*pair, roofline) for pair in zip(trace.calls, costs, strict=True)]
    times = [time for time, _ in answers]
    failures = Counter(
        (entry.call.name, failure)
        for entry in reported
        # an op without a rule has no time either, and is listed as uncounted already
        if (failure := answers[entry.op.call][1]) and entry.kind is not Kind.UNCOUNTED
    )
    untimed = (Untimed(op, count, reason) for (op, reason), count in failures.most_common())
    return Times(roofline, _slots(trace, times, roofline), tuple(untimed))


def _slots(trace: Trace, times: Sequence[CallTime], roofline: Roofline) -> tuple[Slot, ...]:
    """Training and evaluation each as if the other was not there: neither fills a queue that the
    other one would find filled.
    """
    evaluation = Phase.EVALUATION
    places: dict[bool, list[int]] = {False: [], True: []}
    for place, op in enumerate(trace.ops):
        places[op.phase is evaluation].append(place)
    slots = [NOTHING] * len(trace.ops)
    for part in places.values():
        ops = [trace.ops[place] for place in part]
        timed = schedule(ops, times, trace.waits, trace.step_ends, roofline, trace.stream_waits)
        for place, slot in zip(part, timed, strict=True):
            slots[place] = slot
    return tuple(slots)


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

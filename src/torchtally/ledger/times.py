"""When each operator of a trace runs on a chip: a column beside the entries of a ledger."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from torchtally.errors import UsageError
from torchtally.ledger.pricing import CallCost
from torchtally.ledger.total import Untimed
from torchtally.timing.roofline import Roofline
from torchtally.timing.schedule import NOTHING, CallTime, Slot, call_time, no_time, schedule
from torchtally.trace import Call, Trace
from torchtally.work import Kind


@dataclass(frozen=True, slots=True)
class Times:
    """The times of a trace on one chip."""

    roofline: Roofline | None
    """None: no times, every slot is empty."""
    slots: tuple[Slot, ...]
    """One per op of the trace."""
    untimed: tuple[Untimed, ...] = ()
    """Of the steady-state step, most frequent first."""

    def seconds(self, first: int, end: int) -> float:
        """From the end of the op before `first` to the end of the op before `end`."""
        before_s = fsum(slot.seconds for slot in self.slots[:first])
        return fsum(slot.seconds for slot in self.slots[:end]) - before_s

    def kernel_s(self, first: int, end: int) -> float:
        """The part in which the device runs kernels."""
        return fsum(slot.kernel_s for slot in self.slots[first:end])


def no_times(trace: Trace) -> Times:
    return Times(None, (NOTHING,) * len(trace.ops))


def predict_times(
    trace: Trace, costs: Sequence[CallCost], roofline: Roofline, first: int, end: int
) -> Times:
    """`first` and `end` are the places of the steady-state step's ops."""
    answers = [_call_time(*pair, roofline) for pair in zip(trace.calls, costs, strict=True)]
    times = [time for time, _ in answers]
    slots = schedule(trace.ops, times, trace.waits, trace.step_ends, roofline)
    failures = Counter(
        (trace.calls[op.call].name, failure)
        for op in trace.ops[first:end]
        # an op without a rule has no time either, and is listed as uncounted already
        if (failure := answers[op.call][1]) and costs[op.call].kind is not Kind.UNCOUNTED
    )
    untimed = (Untimed(op, count, reason) for (op, reason), count in failures.most_common())
    return Times(roofline, tuple(slots), tuple(untimed))


def _call_time(call: Call, cost: CallCost, roofline: Roofline) -> tuple[CallTime, str]:
    """(the time of a call, why it is unknown)."""
    kind = cost.kind
    if kind.is_free or cost.failure:
        return no_time(kind), cost.failure
    try:
        return call_time(call, kind, cost.exact, roofline), ""
    except UsageError as error:
        return no_time(kind), str(error)
    except Exception as error:  # a call whose shapes no model foresaw
        return no_time(kind), f"its time: {type(error).__name__}: {error}"

"""Predicted time between two moments of a run: what `torch.cuda.Event` answers in a script."""

from dataclasses import dataclass
from math import fsum

from torchtally.errors import UsageError
from torchtally.timing.roofline import Roofline
from torchtally.timing.schedule import CallTime, call_time, no_time, schedule
from torchtally.trace import Call, Trace
from torchtally.work import Kind, cost_of


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds between two ticks of a trace, on the chip of a roofline."""

    roofline: Roofline

    def __call__(self, trace: Trace, first_tick: int, end_tick: int) -> float:
        """Of the operators at first_tick <= t < end_tick, with the device's idle time for them."""
        times = [self._time(call) for call in trace.calls]
        slots = schedule(trace.ops, times, trace.waits, trace.step_ends, self.roofline)
        return fsum(
            slot.seconds
            for op, slot in zip(trace.ops, slots, strict=True)
            if first_tick <= op.clock < end_tick
        )

    def _time(self, call: Call) -> CallTime:
        """A call without a time counts as zero here; the report of the run lists it."""
        try:
            kind, cost = cost_of(call)
            return call_time(call, kind, cost, self.roofline)
        except UsageError:
            return no_time(Kind.UNCOUNTED)

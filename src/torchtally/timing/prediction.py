"""Predicted time between two moments of a run: what `torch.cuda.Event` answers in a script."""

from dataclasses import dataclass
from math import fsum

from torchtally.errors import UsageError
from torchtally.timing.roofline import Bound, Kernel, Roofline
from torchtally.timing.schedule import Clock, Price, priced
from torchtally.trace import Call, Trace
from torchtally.work import Cost, Kind, cost_of


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds between two ticks of a trace, on the chip of a roofline."""

    roofline: Roofline

    def __call__(self, trace: Trace, first_tick: int, end_tick: int) -> float:
        """Of the operators at first_tick <= t < end_tick, with the device's idle time for them."""
        calls = {id(op.call): op.call for op in trace.ops}
        prices = {key: self._price(call) for key, call in calls.items()}
        op_times = [prices[id(op.call)] for op in trace.ops]
        slots = Clock(self.roofline).run(trace.ops, op_times, trace.waits, trace.step_ends)
        return fsum(
            slot.seconds
            for op, slot in zip(trace.ops, slots, strict=True)
            if first_tick <= op.clock < end_tick
        )

    def _price(self, call: Call) -> Price:
        """What cannot be timed takes nothing here; the report of the run lists it."""
        try:
            kind, cost = cost_of(call)
            return priced(call, kind, cost, self.roofline)
        except UsageError:
            kind, cost = Kind.UNCOUNTED, Cost()
        return Price(Kernel(0.0, Bound.OVERHEAD), kind, 0)

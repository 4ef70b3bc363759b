"""One measured operator: the call, as facts, and how long it took."""

from torchtally.trace import Call
from torchtally.trace.record import Record


class Sample(Record, frozen=True):
    """A call that ran by itself on a real device, again and again on the same tensors."""

    call: Call
    seconds: float
    """The median of the faster half of many runs, without what the host takes to issue it."""

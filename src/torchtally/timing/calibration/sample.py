"""One measured operator: the call, as facts, and how long it took."""

from dataclasses import dataclass

from torchtally.trace import Call


@dataclass(frozen=True, slots=True)
class Sample:
    """A call that ran by itself on a real device, again and again on the same tensors."""

    call: Call
    seconds: float
    """The median of the faster half of many runs, without what the host takes to issue it."""

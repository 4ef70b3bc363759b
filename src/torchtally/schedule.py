"""When each operator runs: the host issues them one by one, the device works them off.

A GPU begins an operator when it has done the one before and the host has issued this one. What an
operator takes of the step is from the end of the one before it to its own end: its kernel, and the
time the device stood idle for it. So the times of a step's operators sum to the time of the step.

A CPU is host and device in one: issuing and computing follow each other.

Not modelled: streams beside each other (operators of all streams run in the order they were issued
in), and the limit of the queue (1024 launches), which a host that far ahead would wait for.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from torchtally.calibration import Issue
from torchtally.cost import Cost, Kind
from torchtally.record import Call, Op, Phase
from torchtally.roofline import Bound, Kernel, Roofline, launches


class Slot(NamedTuple):
    """An operator's part of the time."""

    seconds: float
    """From the end of the operator before: `kernel_s` and idle time."""
    kernel_s: float
    bound: Bound
    is_calibrated: bool


class Price(NamedTuple):
    """What depends on a call alone."""

    kernel: Kernel
    kind: Kind
    extra_launches: int


class Untimed(NamedTuple):
    """A call whose time the chip's numbers cannot tell."""

    op: str
    reason: str


class Clock:
    """Host and device, each at its own moment. Seconds from the beginning of the trace."""

    def __init__(self, roofline: Roofline) -> None:
        self.issue = roofline.issue
        self.is_host = roofline.is_host
        self.host_s = 0.0
        self.device_s = 0.0
        self._since_launch: list[tuple[int, float]] = []
        """Operators issued since the device was last given something: (place, seconds)."""

    def run(
        self, ops: Sequence[Op], prices: Sequence[Price], waits: Iterable[int], ends: Iterable[int]
    ) -> list[Slot]:
        """Every operator in turn. `waits` are the ticks before which the host waited for the
        device, `ends` those at which a training step ends.
        """
        slots: list[Slot] = []
        waiting, ending = iter(waits), iter(ends)
        wait, end = next(waiting, NEVER), next(ending, NEVER)
        for op, price in zip(ops, prices, strict=True):
            while wait <= op.clock:
                self.host_s = max(self.host_s, self.device_s)
                wait = next(waiting, NEVER)
            while end <= op.clock:
                self._since_launch.clear()  # what a step does not use is not the next one's
                end = next(ending, NEVER)
            slots.append(self._next(op.phase, price, slots))
        return slots

    def _next(self, phase: Phase, price: Price, slots: list[Slot]) -> Slot:
        issue_s = issue_seconds(self.issue, phase, price)
        kernel = price.kernel
        if self.is_host:
            self.host_s = self.device_s = self.device_s + issue_s + kernel.seconds
            bound = kernel.bound if kernel.seconds >= issue_s else Bound.OVERHEAD
            return Slot(issue_s + kernel.seconds, kernel.seconds, bound, kernel.is_calibrated)
        self.host_s += issue_s
        self._since_launch.append((len(slots), issue_s))
        if kernel.seconds <= 0:
            return Slot(0.0, 0.0, Bound.OVERHEAD, kernel.is_calibrated)
        idle_s = max(0.0, self.host_s - self.device_s)
        self.device_s += idle_s + kernel.seconds
        own_idle_s = self._blame(idle_s, slots)
        bound = kernel.bound if kernel.seconds >= own_idle_s else Bound.OVERHEAD
        return Slot(own_idle_s + kernel.seconds, kernel.seconds, bound, kernel.is_calibrated)

    def _blame(self, idle_s: float, slots: list[Slot]) -> float:
        """Share idle time among those the host spent it on; the share of the last is returned."""
        issued_s = sum(seconds for _, seconds in self._since_launch)
        own_s = idle_s
        if idle_s > 0:
            for place, seconds in self._since_launch[:-1]:
                share_s = idle_s * seconds / issued_s
                slots[place] = slots[place]._replace(seconds=share_s)
                own_s -= share_s
        self._since_launch.clear()
        return own_s


NEVER = 2**63


def issue_seconds(issue: Issue, phase: Phase, price: Price) -> float:
    """What the host takes to issue an operator and its kernels."""
    if price.kind.is_free:
        return issue.view_s
    base_s = {
        Phase.BACKWARD: issue.backward_s,
        Phase.OPTIMIZER: issue.optimizer_s,
    }.get(phase, issue.forward_s)
    return base_s + price.extra_launches * issue.launch_s


def priced(call: Call, kind: Kind, cost: Cost, roofline: Roofline) -> Price:
    """Raises UsageError where the chip lacks a number that the time depends on."""
    kernel = roofline.kernel(call, kind, cost)
    extra = 0 if roofline.is_host else max(0, launches(call) - 1)
    return Price(kernel, kind, extra)


def starts(slots: Iterable[Slot]) -> Iterator[float]:
    """The moment each operator's part begins, the first at 0."""
    now_s = 0.0
    for slot in slots:
        yield now_s
        now_s += slot.seconds

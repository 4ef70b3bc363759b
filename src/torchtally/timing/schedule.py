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

from torchtally.timing.calibration import Issue
from torchtally.timing.roofline import Bound, Kernel, Roofline
from torchtally.timing.roofline.launches import launches_of
from torchtally.trace import Call, Op, Phase
from torchtally.work import Cost, Kind


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


NOTHING = Slot(0.0, 0.0, Bound.OVERHEAD, False)
"""A view's, before it is blamed for any idle time. One object for all: they are most of a trace."""


class Clock:
    """Host and device, each at its own moment. Seconds from the beginning of the trace."""

    def __init__(self, roofline: Roofline) -> None:
        self.issue = roofline.issue
        self.is_host = roofline.is_host

    def run(
        self, ops: Sequence[Op], prices: Sequence[Price], waits: Iterable[int], ends: Iterable[int]
    ) -> list[Slot]:
        """Every operator in turn. `waits` are the ticks before which the host waited for the
        device, `ends` those at which a training step ends.
        """
        issued = self._issued(ops, prices)
        return self._in_line(issued, prices) if self.is_host else self._beside(
            ops, issued, prices, iter(waits), iter(ends)
        )  # fmt: skip

    def _issued(self, ops: Sequence[Op], prices: Sequence[Price]) -> list[float]:
        """What the host takes to issue each operator."""
        distinct = {id(price): price for price in prices}
        issue_s_by_call = {
            key: issue_by_phase(self.issue, price) for key, price in distinct.items()
        }
        return [
            issue_s_by_call[id(price)][id(op.phase)] for op, price in zip(ops, prices, strict=True)
        ]  # fmt: skip

    def _in_line(self, issued: Sequence[float], prices: Sequence[Price]) -> list[Slot]:
        """A CPU issues an operator, then computes it."""
        slots = []
        for issue_s, (kernel, _, _) in zip(issued, prices, strict=True):
            bound = kernel.bound if kernel.seconds >= issue_s else Bound.OVERHEAD
            seconds = issue_s + kernel.seconds
            slots.append(Slot(seconds, kernel.seconds, bound, kernel.is_calibrated))
        return slots

    def _beside(
        self,
        ops: Sequence[Op],
        issued: Sequence[float],
        prices: Sequence[Price],
        waits: Iterator[int],
        ends: Iterator[int],
    ) -> list[Slot]:
        """A GPU computes while the host goes on."""
        host_s = device_s = 0.0
        slots: list[Slot] = []
        since_launch: list[tuple[int, float]] = []
        wait, end = next(waits, NEVER), next(ends, NEVER)
        for place, (op, issue_s, (kernel, _, _)) in enumerate(
            zip(ops, issued, prices, strict=True)
        ):
            tick = op.clock
            while wait <= tick:
                host_s = max(host_s, device_s)
                wait = next(waits, NEVER)
            while end <= tick:
                since_launch.clear()  # what a step does not use is not the next one's
                end = next(ends, NEVER)
            host_s += issue_s
            kernel_s = kernel.seconds
            if kernel_s <= 0:
                since_launch.append((place, issue_s))
                slots.append(NOTHING)
                continue
            idle_s = host_s - device_s if host_s > device_s else 0.0
            device_s += idle_s + kernel_s
            if since_launch:
                idle_s = shared(idle_s, issue_s, since_launch, slots)
                since_launch.clear()
            bound = kernel.bound if kernel_s >= idle_s else Bound.OVERHEAD
            slots.append(Slot(idle_s + kernel_s, kernel_s, bound, kernel.is_calibrated))
        return slots


def shared(
    idle_s: float, issue_s: float, since_launch: Sequence[tuple[int, float]], slots: list[Slot]
) -> float:
    """Idle time among all that the host issued since the last launch; what is left is returned.

    It is blamed on them by what issuing each of them took.
    """
    if idle_s <= 0:
        return 0.0
    all_s = issue_s + sum(seconds for _, seconds in since_launch)
    left_s = idle_s
    for place, seconds in since_launch:
        share_s = idle_s * seconds / all_s
        slots[place] = slots[place]._replace(seconds=share_s)
        left_s -= share_s
    return left_s


NEVER = 2**63


def issue_by_phase(issue: Issue, price: Price) -> dict[int, float]:
    """What the host takes to issue an operator and its kernels, by the id of the phase: enum
    members are hashed by slow roads.
    """
    if price.kind.is_free:
        return {id(phase): issue.view_s for phase in Phase}
    extra_s = price.extra_launches * issue.launch_s
    return {
        id(Phase.FORWARD): issue.forward_s + extra_s,
        id(Phase.RECOMPUTE): issue.forward_s + extra_s,
        id(Phase.BACKWARD): issue.backward_s + extra_s,
        id(Phase.OPTIMIZER): issue.optimizer_s + extra_s,
    }


def priced(call: Call, kind: Kind, cost: Cost, roofline: Roofline) -> Price:
    """Raises UsageError where the chip lacks a number that the time depends on."""
    kernel = roofline.kernel(call, kind, cost)
    extra = 0 if roofline.is_host else max(0, launches_of(call, kind, cost) - 1)
    return Price(kernel, kind, extra)

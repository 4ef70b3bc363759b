"""An operator's part of the time of a step."""

from collections.abc import Sequence
from typing import NamedTuple

from torchtally.timing.roofline import Bound


class Slot(NamedTuple):
    """An operator's part of the time."""

    seconds: float
    """From the end of the operator before: `kernel_s` and idle time."""
    kernel_s: float
    bound: Bound
    is_calibrated: bool
    waiting_s: float = 0.0
    """Of `seconds`: for other ranks, which are late."""
    idle_s: float = 0.0
    """Of `seconds`: the device idles before it. Known where streams run beside each other."""

    def part(self, share: float) -> "Slot":
        """The share of one of several operators that run as one kernel."""
        return self._replace(
            seconds=self.seconds * share,
            kernel_s=self.kernel_s * share,
            waiting_s=self.waiting_s * share,
            idle_s=self.idle_s * share,
        )

    @property
    def exposed_s(self) -> float:
        """Seconds of a collective while nothing computes, and all ranks have come."""
        return self.seconds - self.waiting_s - self.idle_s


NOTHING = Slot(0.0, 0.0, Bound.OVERHEAD, False)
"""Of a view, before it is charged for idle time. One object for all: views are most of a trace."""


SLEEPING = NOTHING._replace(bound=Bound.SLEEP)
"""The same of the script's own sleep."""


def share_idle(
    idle_s: float, issue_s: float, since_launch: Sequence[tuple[int, float]], slots: list[Slot]
) -> float:
    """Share idle time among the operators that the host issued since the last launch.

    Each is charged in proportion to what issuing it took. Returns what is left for this launch.
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

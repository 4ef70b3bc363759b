"""CPUs beside a GPU: how long they take to issue operators, over the estimate for any of them.

`constants.toml` has their sources.
"""

from dataclasses import dataclass

from msgspec import structs

from torchtally.chips import Chip
from torchtally.timing.calibration import Issue
from torchtally.timing.constants import (
    CLOUD_ISSUE_US,
    ESTIMATED_ISSUE_S,
    GRACE_TIMES,
    VIRTUAL_TIMES,
)

ESTIMATED_ISSUE = Issue(**ESTIMATED_ISSUE_S)


@dataclass(frozen=True, slots=True)
class HostCpu:
    """A CPU that issues operators."""

    name: str
    times: float
    """Of `ESTIMATED_ISSUE`, what it takes."""

    @property
    def issue(self) -> Issue:
        estimated = structs.asdict(ESTIMATED_ISSUE)
        return Issue(**{name: self.times * seconds for name, seconds in estimated.items()})


NO_HOST = HostCpu("none: kernels alone", 0.0)
"""As where a CUDA graph issues the whole step."""
USUAL = HostCpu("Xeon 8480C, or a desktop's", 1.0)
GRACE = HostCpu("Grace", GRACE_TIMES)
VIRTUAL = HostCpu("Xeon in a virtual machine", VIRTUAL_TIMES)
CLOUD = HostCpu("of a cloud's L4", CLOUD_ISSUE_US[0] / CLOUD_ISSUE_US[1])
HOSTS = (NO_HOST, USUAL, VIRTUAL, GRACE, CLOUD)

WITH_GRACE = ("GH200", "GB200", "GB300")
"""Chips that are sold on one board with it: beginnings of their names."""


def host_of(chip: Chip) -> HostCpu:
    """That stands beside such a chip."""
    return GRACE if chip.name.startswith(WITH_GRACE) else USUAL

"""The time of one operator on a device by itself, and what bounds it."""

from dataclasses import dataclass
from enum import StrEnum


class Bound(StrEnum):
    """What an operator's time goes into: the resource that would have to be faster."""

    COMPUTE = "compute"
    MEMORY = "memory"
    NETWORK = "network"
    """Collectives, over the links between chips."""
    TRANSFER = "transfer"
    """Copies between host and device, over the host's link."""
    BUBBLE = "bubble"
    """Waiting for other ranks: pipeline bubbles, and loads that differ."""
    SLEEP = "sleep"
    """The script itself waits (`time.sleep`), and issues nothing."""
    OVERHEAD = "overhead"
    """Launching: the kernel is too small to fill the device, or the host issues it too late."""

    @property
    def is_link(self) -> bool:
        """Whether a link outside of the chip is waited for: its arithmetic and memory are free."""
        return self in (Bound.NETWORK, Bound.TRANSFER)


@dataclass(frozen=True, slots=True)
class Kernel:
    """The kernels of one operator, run one after the other on a device that has nothing else."""

    seconds: float
    bound: Bound
    is_calibrated: bool = False
    """Corrected by measurements of this operator on this device."""
    multiprocessor_share: float = 0.0
    """Of a collective: what kernels beside it do without, while its blocks stay where they are."""
    bandwidth_share: float = 0.0
    """The same of the device memory's bandwidth."""

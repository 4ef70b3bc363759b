"""What was measured on one real device: the facts that predictions are corrected by."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchtally.timing.calibration.sample import Sample


@dataclass(frozen=True, slots=True)
class Issue:
    """Seconds the host takes to issue operators of a plain PyTorch loop, Python included.

    Measured on small models, whose steps are nothing else, with as many operators of each sort.
    """

    forward_s: float
    """For an operator of the forward pass that computes something."""
    backward_s: float
    optimizer_s: float
    view_s: float
    """For an operator that makes a view, in any phase."""
    launch_s: float
    """For each kernel of an operator beyond its first; 0 where there are no launches."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """One device as `tally bench` measured it."""

    device: str
    """What the driver, or the operating system, calls it."""
    kind: str
    """"cuda" or "cpu"."""
    torch_version: str
    date: str
    """ISO, of the day."""
    memory_bytes: int
    threads: int | None
    """Of the CPU that ran the operators; None for a GPU."""
    peak_flop_per_s: Mapping[str, float] = field(hash=False)
    """The best rate any product reached, by dtype as the hardware table spells it."""
    bandwidth_bytes_per_s: float
    """The best rate at which large tensors were read and written."""
    first_touch_s_per_byte: float
    """What memory fresh from the operating system costs when it is first written; 0 on a GPU."""
    issue: Issue
    samples: tuple[Sample, ...] = field(hash=False)
    conditions: Mapping[str, str] = field(hash=False, default_factory=dict)
    """Whatever else may matter: clocks, power limit, driver, platform."""

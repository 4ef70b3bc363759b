"""What was measured on one real device: the facts that predictions are corrected by."""

import msgspec

from torchtally.timing.calibration.sample import Sample

FORMAT = 2


class Issue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds the host takes to issue operators of a plain PyTorch loop, Python included.

    Measured on small models, whose steps are nothing else, with as many operators of each sort.
    """

    forward_s: float
    """For an operator of the forward pass that computes something."""
    backward_s: float
    optimizer_s: float
    """For an operator on single tensors: one on lists takes `list_s` besides."""
    view_s: float
    """For an operator that makes a view, in any phase."""
    launch_s: float
    """For each kernel of an operator beyond its first; 0 where there are no launches."""
    list_s: float = 0.0
    """For each tensor of an operator on lists, as optimizers have by default on a GPU, with what
    the optimizer's own loops take for it."""


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
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
    peak_flop_per_s: dict[str, float]
    """The best rate any product reached, by dtype as the hardware table spells it."""
    bandwidth_bytes_per_s: float
    """The best rate at which large tensors were read and written."""
    first_touch_s_per_byte: float
    """What memory fresh from the operating system costs when it is first written; 0 on a GPU."""
    issue: Issue
    conditions: dict[str, str] = {}
    """Whatever else may matter: clocks, power limit, driver, platform."""
    samples: tuple[Sample, ...]
    missing: tuple[str, ...] = ()
    """What an interrupted `tally bench` has not measured yet, or not all of, by its name there."""
    reach: float = 0.0
    """How far a sample says something of other sizes: at `exp(reach)` times its size half of its
    correction is left. 0: as far as to the next one, as a ladder of sizes is measured for. Calls of
    profiled programs are few, and each in its own surroundings."""
    format: int = FORMAT
    """Of its file."""

    def __hash__(self) -> int:
        return hash((self.device, self.threads, self.date))

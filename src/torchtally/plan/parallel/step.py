"""How long a training step takes under a layout, what for, and what bounds it.

    step = micro-batches * (work + waits) + bubble + pipeline + data parallelism + optimizer

of the slowest stage, which is the last: it has the head.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtally.chips import Cluster
from torchtally.plan.activations.setting import Loss
from torchtally.plan.architecture.model import Model
from torchtally.plan.optimizers import Optimizer
from torchtally.plan.parallel.chip_memory import ChipMemory
from torchtally.plan.parallel.degrees import DEGREES
from torchtally.plan.parallel.kernels import KernelTimes
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.overlap import Overlap, overlap_of
from torchtally.plan.parallel.pace import TYPICAL, Host, Pace
from torchtally.plan.quantity import Quantity
from torchtally.plan.recipes import Recipe
from torchtally.timing.roofline.attention import Fused
from torchtally.work.convention import Convention

if TYPE_CHECKING:
    from torchtally.plan.parallel.frozen import Frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained, on which chips, and how a step overlaps."""

    model: Model
    cluster: Cluster
    sequence: int
    recipe: Recipe
    optimizer: Optimizer
    overlap: Overlap = field(default_factory=overlap_of)
    attention: Convention = Convention.FULL
    """The convention by which MFU counts attention, if that is no more than the chips can do."""
    pace: Pace = TYPICAL
    host: Host = Host.EAGER
    fused: Fused | None = None
    """Whose fused attention kernel runs; None: PyTorch's choice."""
    loss: Loss | None = None
    """None: the implementation's usual one."""
    frozen: "Frozen | None" = None
    """Adapters beside frozen weights; None: all weights are trained."""

    @property
    def kernel_times(self) -> KernelTimes:
        return KernelTimes(
            self.cluster.chip,
            self.recipe,
            self.pace,
            self.fused,
            self.loss,
            is_frozen=self.frozen is not None,
        )


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of a step's seconds. They sum to `total`."""

    seconds: Mapping[str, Quantity]
    """"compute", "bubble", "optimizer", and by degree of parallelism the communication that does
    not overlap."""
    total: Quantity
    streaming: Quantity
    """The part of compute that runs at memory's speed; not added to `total` again."""

    def __getitem__(self, name: str) -> Quantity:
        return self.seconds[name]

    @property
    def network_s(self) -> float:
        """All communication that does not overlap."""
        return float(sum(self.seconds[degree.name].value for degree in DEGREES))

    @property
    def largest(self) -> str:
        """What bounds the step, in words."""
        name = max(self.seconds, key=lambda name: self.seconds[name].value)
        is_streaming = 2 * self.streaming.value > self.seconds["compute"].value
        return "memory bandwidth" if name == "compute" and is_streaming else BOUNDS.get(name, name)


BOUNDS = {"bubble": "pipeline bubble", **{degree.name: degree.network for degree in DEGREES}}
"""What bounds a step, by its largest part, where the part's own name does not say it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One training step under one layout, predicted."""

    layout: Layout
    seconds: Quantity
    best: Quantity
    """With kernels at their best published rates and nothing in their way."""
    slow: Quantity
    """What nine of ten published trainings stayed below."""
    parts: Parts
    memory: ChipMemory
    """Of the fullest chip."""
    fits: bool
    tokens: Quantity
    tokens_per_s: Quantity
    """Of all chips."""
    attention: Convention
    """The convention by which both of these count attention: causal where in full, which counts
    what is masked, too, would be more than the chips can do."""
    mfu: Quantity
    hfu: Quantity
    bound: str
    """What takes the largest part of the step, in words."""
    assumptions: tuple[str, ...]

    def working(self) -> tuple[Quantity, ...]:
        """Every step of the arithmetic of time, then of memory."""
        return (*self.tokens_per_s.working(), *self.memory.total.working())

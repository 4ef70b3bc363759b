"""How long a training step takes under a layout, what for, and what bounds it.

    step = micro-batches * (work + waits) + bubble + pipeline + data parallelism + optimizer

of the slowest stage, which is the last: it has the head.
"""

from dataclasses import dataclass, field
from typing import TypeVar

from torchtally.chips import Cluster
from torchtally.plan.architecture.model import Model
from torchtally.plan.optimizers import Optimizer
from torchtally.plan.parallel.chip_memory import (
    ChipMemory,
)
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.overlap import Overlap
from torchtally.plan.quantity import Quantity
from torchtally.plan.recipes import Recipe
from torchtally.work.convention import Attention

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is trained, on which chips, and how a step overlaps."""

    model: Model
    cluster: Cluster
    sequence: int
    recipe: Recipe
    optimizer: Optimizer
    overlap: Overlap = field(default_factory=Overlap)
    attention: Attention = Attention.FULL
    """The convention by which MFU counts attention."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Where a step's seconds go. They sum to `total`."""

    compute: Quantity
    tensor: Quantity
    context: Quantity
    expert: Quantity
    pipeline: Quantity
    """Sends between stages that show."""
    bubble: Quantity
    data: Quantity
    optimizer: Quantity
    total: Quantity
    streaming: Quantity
    """What of `compute` goes by memory's speed: in no sum of its own."""

    @property
    def largest(self) -> str:
        """What bounds the step, in words."""
        named = {
            "compute": self.compute,
            "tensor-parallel network": self.tensor,
            "context-parallel network": self.context,
            "expert-parallel network": self.expert,
            "pipeline network": self.pipeline,
            "pipeline bubble": self.bubble,
            "data-parallel network": self.data,
            "optimizer": self.optimizer,
        }
        word = max(named, key=lambda name: named[name].value)
        is_streaming = 2 * self.streaming.value > self.compute.value
        return "memory bandwidth" if word == "compute" and is_streaming else word


@dataclass(frozen=True, slots=True)
class Step:
    """One training step under one layout, predicted."""

    layout: Layout
    seconds: Quantity
    parts: Parts
    memory: ChipMemory
    """Of the fullest chip."""
    fits: bool
    tokens: Quantity
    tokens_per_s: Quantity
    """Of all chips."""
    mfu: Quantity
    hfu: Quantity
    bound: str
    """What takes the largest part of the step, in words."""
    assumptions: tuple[str, ...]

    def working(self) -> tuple[Quantity, ...]:
        """Every step of the arithmetic of time, then of memory."""
        return (*self.tokens_per_s.working(), *self.memory.total.working())

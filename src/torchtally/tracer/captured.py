"""What a CUDA graph has captured, and where its operators belong when it is replayed."""

from dataclasses import dataclass, field
from typing import NamedTuple

from torch.optim import Optimizer

from torchtally.trace import Phase
from torchtally.virtual.compiling.kernels import LoweredGraph


class Placed(NamedTuple):
    """Site of an operator of compiled code, whoever runs it."""

    graph: LoweredGraph | None
    """None: code that is not compiled."""
    site: int
    parts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Captured:
    """An operator of a CUDA graph: the number of its call, its phase and its storages' numbers."""

    call: int
    phase: Phase
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    compiled: Placed | None = None
    """Of what a compiler wrote; other operators belong to the line that replays."""
    steps: list[Optimizer] = field(default_factory=list)
    """Optimizers that had stepped with it."""

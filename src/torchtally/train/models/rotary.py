"""Rotary positions: pairs of a head's numbers turned by an angle that grows with the position.

Su et al. 2021, arXiv 2104.09864. Pairs are (i, i + D/2), as Llama's weights on Hugging Face have
them, not neighbours.

Axes: `sequence` positions, `heads`, `head_dim` (D), `half` (D/2).
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchtally.train.models.config import RopeStretch


def stretch_rates(rates: Float[Tensor, " half"], stretch: RopeStretch) -> Float[Tensor, " half"]:
    """Radians a position, slower where a turn is long. Turns are counted in the original context:
    `high_factor` of them or more change nothing, `low_factor` or fewer are stretched in full.
    """
    turns = stretch.original_context * rates / (2 * math.pi)
    share = (turns - stretch.low_factor) / (stretch.high_factor - stretch.low_factor)
    return torch.lerp(rates / stretch.factor, rates, share.clamp(0, 1))


class Rotary(nn.Module):
    """Cosines and sines of all positions, as float32 buffers that no checkpoint holds."""

    cos: Float[Tensor, "context half"]
    sin: Float[Tensor, "context half"]

    def __init__(
        self, head_dim: int, context: int, theta: float, stretch: RopeStretch | None = None
    ) -> None:
        super().__init__()
        self.theta, self.stretch = theta, stretch
        for name in ("cos", "sin"):
            table = torch.empty(context, head_dim // 2, dtype=torch.float32)
            self.register_buffer(name, table, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Pair i of D/2 turns by theta ** (-2 i / D) a position."""
        context, half = self.cos.shape
        device = self.cos.device
        exponents = torch.arange(half, dtype=torch.float32, device=device) / half
        positions = torch.arange(context, dtype=torch.float32, device=device)
        rates = 1.0 / self.theta**exponents
        if self.stretch is not None:
            rates = stretch_rates(rates, self.stretch)
        angles = torch.outer(positions, rates)
        self.cos, self.sin = angles.cos(), angles.sin()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Rotary":
        """Moves the tables. Not their dtype: `model.bfloat16()` would round late positions into
        each other; and not nothing: a table from the meta device has no values to move.
        """
        was_empty = self.cos.is_meta
        parent: Any = super()
        parent._apply(fn, recurse)
        if was_empty or self.cos.dtype != torch.float32:
            self.reset_parameters()
        return self

    def forward(
        self, x: Float[Tensor, "batch sequence heads head_dim"]
    ) -> Float[Tensor, "batch sequence heads head_dim"]:
        """Turned in float32 at least, and returned in the dtype given."""
        cos, sin = (table[: x.shape[1], None] for table in (self.cos, self.sin))
        first, second = x.chunk(2, dim=-1)
        turned = (first * cos - second * sin, second * cos + first * sin)
        return torch.cat(turned, dim=-1).to(x.dtype)

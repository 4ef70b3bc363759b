"""Rotary position embedding: pairs of features rotated by an angle proportional to the position.

Su et al. 2021, arXiv 2104.09864. Pairs are (i, i + D/2), as in Hugging Face's Llama weights, not
neighbours.

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
    """Radians per position, reduced for long periods. A pair with `high_factor` or more turns in
    the original context is unchanged, one with `low_factor` or fewer is fully stretched.
    """
    turns = stretch.original_context * rates / (2 * math.pi)
    share = (turns - stretch.low_factor) / (stretch.high_factor - stretch.low_factor)
    return torch.lerp(rates / stretch.factor, rates, share.clamp(0, 1))


class Rotary(nn.Module):
    """Tables of cosines and sines, as non-persistent float32 buffers."""

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
        """Pair i of D/2 rotates by theta ** (-2 i / D) per position."""
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
        """Move the tables, but keep them float32 (`model.bfloat16()` would merge late positions),
        and recompute them after `to_empty`: tables on the meta device have no values.
        """
        was_empty = self.cos.is_meta
        parent: Any = super()
        parent._apply(fn, recurse)
        if was_empty or self.cos.dtype != torch.float32:
            self.reset_parameters()
        return self

    def forward(
        self, x: Float[Tensor, "batch sequence heads head_dim"], begin: int = 0
    ) -> Float[Tensor, "batch sequence heads head_dim"]:
        """Rotates positions from `begin` on, in float32 or wider; returns the input's dtype."""
        end = begin + x.shape[1]
        cos, sin = (table[begin:end, None] for table in (self.cos, self.sin))
        first, second = x.chunk(2, dim=-1)
        turned = (first * cos - second * sin, second * cos + first * sin)
        return torch.cat(turned, dim=-1).to(x.dtype)

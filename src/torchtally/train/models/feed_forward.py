"""The feed-forward part of a layer: two projections around GELU, or three with a gate.

Axes: `batch`, `sequence`, `width`.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from torchtally.train.models.config import TransformerConfig
from torchtally.train.models.linear import Linear


class GatedFeedForward(nn.Module):
    """down(silu(gate(x)) * up(x)): SwiGLU, Shazeer 2020, arXiv 2002.05202."""

    def __init__(self, config: TransformerConfig, *, gain: float) -> None:
        super().__init__()
        self.gate = Linear(config.width, config.ffn, has_bias=config.has_bias)
        self.up = Linear(config.width, config.ffn, has_bias=config.has_bias)
        self.down = Linear(config.ffn, config.width, has_bias=config.has_bias, gain=gain)

    def forward(
        self, x: Float[Tensor, "batch sequence width"]
    ) -> Float[Tensor, "batch sequence width"]:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class PlainFeedForward(nn.Module):
    """down(gelu(up(x))), exact or with GPT-2's tanh: Hendrycks and Gimpel 2016, arXiv
    1606.08415.
    """

    def __init__(self, config: TransformerConfig, *, gain: float) -> None:
        super().__init__()
        self.up = Linear(config.width, config.ffn, has_bias=config.has_bias)
        self.down = Linear(config.ffn, config.width, has_bias=config.has_bias, gain=gain)
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"

    def forward(
        self, x: Float[Tensor, "batch sequence width"]
    ) -> Float[Tensor, "batch sequence width"]:
        out: Tensor = self.down(F.gelu(self.up(x), approximate=self.approximate))
        return out

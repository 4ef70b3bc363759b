"""The feed-forward part of a layer: two projections around GELU, or three with a gate.

Axes: `batch`, `sequence`, `width`.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from torchtally.train.models.config import TransformerConfig
from torchtally.train.models.linear import Linear


class DecoderFeedForward(nn.Module):
    """down(silu(gate(x)) * up(x)), SwiGLU: Shazeer 2020, arXiv 2002.05202; without a gate
    down(gelu(up(x))), exact or with GPT-2's tanh: Hendrycks and Gimpel 2016, arXiv 1606.08415.
    """

    def __init__(self, config: TransformerConfig, *, gain: float) -> None:
        super().__init__()
        width, ffn, bias = config.width, config.ffn, config.has_bias
        is_gated = config.activation == "swiglu"
        self.gate = Linear(width, ffn, has_bias=bias) if is_gated else None
        self.up = Linear(width, ffn, has_bias=bias)
        self.down = Linear(ffn, width, has_bias=bias, gain=gain)
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"

    def forward(
        self, x: Float[Tensor, "batch sequence width"]
    ) -> Float[Tensor, "batch sequence width"]:
        if self.gate is not None:
            inner = F.silu(self.gate(x)) * self.up(x)
        else:
            inner = F.gelu(self.up(x), approximate=self.approximate)
        out: Tensor = self.down(inner)
        return out

"""The feed-forward part of a layer: two projections around GELU, three with a gate, or experts.

Axes: `batch`, `sequence`, `width`; `tokens` is batch and sequence.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from torchtally.train.models.config import GATED, TransformerConfig
from torchtally.train.models.linear import Linear


class DecoderFeedForward(nn.Module):
    """down(silu(gate(x)) * up(x)), SwiGLU, or GELU in place of silu, GEGLU: Shazeer 2020, arXiv
    2002.05202; without a gate
    down(gelu(up(x))), exact or with GPT-2's tanh: Hendrycks and Gimpel 2016, arXiv 1606.08415.
    """

    def __init__(self, config: TransformerConfig, *, gain: float) -> None:
        super().__init__()
        width, ffn, bias = config.width, config.ffn, config.has_bias
        is_gated, std = config.activation in GATED, config.init_std
        self.gate = Linear(width, ffn, has_bias=bias, std=std) if is_gated else None
        self.up = Linear(width, ffn, has_bias=bias, std=std)
        self.down = Linear(ffn, width, has_bias=bias, gain=gain, std=std)
        self.activation = config.activation

    def forward(self, x: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens width"]:
        inner = self._activate(self.up(x) if self.gate is None else self.gate(x))
        out: Tensor = self.down(inner if self.gate is None else inner * self.up(x))
        return out

    def _activate(self, x: Tensor) -> Tensor:
        if self.activation == "swiglu":
            return F.silu(x)
        return F.gelu(x, approximate="none" if self.activation == "gelu" else "tanh")


class MixtureOfExperts(nn.Module):
    """Each token's sum over the experts with its highest scores, weighted by the softmax of these:
    Mixtral, arXiv 2401.04088, section 2.
    """

    def __init__(self, config: TransformerConfig, *, gain: float) -> None:
        super().__init__()
        assert config.experts is not None
        assert config.active_experts is not None
        self.active = config.active_experts
        self.router = Linear(config.width, config.experts, std=config.init_std)
        self.experts = nn.ModuleList(
            DecoderFeedForward(config, gain=gain) for _ in range(config.experts)
        )

    def forward(
        self, x: Float[Tensor, "batch sequence width"]
    ) -> Float[Tensor, "batch sequence width"]:
        rows = x.flatten(0, -2)
        scores, chosen = self.router(rows).float().topk(self.active, dim=-1)
        shares = scores.softmax(dim=-1)
        out = torch.zeros_like(rows)
        # Experts without tokens run, too: every rank has a gradient for every parameter.
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            share = shares[token, place, None]
            out = out.index_add(0, token, (expert(rows[token]) * share).to(out.dtype))
        return out.view_as(x)

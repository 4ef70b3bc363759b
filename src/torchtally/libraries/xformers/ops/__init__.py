"""xformers.ops."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtally.libraries.operators.attention import HALVES, FlashOptions, attend

from .fmha.attn_bias import (
    AttentionBias,
    BlockDiagonalCausalMask,
    BlockDiagonalMask,
    LowerTriangularMask,
)

UNKNOWN_BIAS = (
    "tally's stand-in of xformers knows no attention bias of {}: it knows LowerTriangularMask, "
    "BlockDiagonalMask, BlockDiagonalCausalMask and tensors"
)


def memory_efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Any = None, p: float = 0.0,
    scale: float | None = None, *, op: Any = None, output_dtype: Any = None,
) -> Tensor:  # fmt: skip
    """Attention of (B, S, H, D), or (B, S, D) of one head: FlashAttention-2 in half precision,
    which is what xformers takes first; else, and with a bias that is a tensor, its own CUTLASS
    kernel, which is PyTorch's memory-efficient one.
    """
    if query.dim() == 3:
        q, k, v = (tensor.unsqueeze(2) for tensor in (query, key, value))
        return memory_efficient_attention(q, k, v, attn_bias, p, scale).squeeze(2)
    if isinstance(attn_bias, Tensor) or query.dtype not in HALVES:
        is_causal = isinstance(attn_bias, LowerTriangularMask)
        bias = attn_bias if isinstance(attn_bias, Tensor) else None
        if bias is None and attn_bias is not None and not is_causal:
            raise NotImplementedError(UNKNOWN_BIAS.format(type(attn_bias)))
        q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.EFFICIENT_ATTENTION):
            out = F.scaled_dot_product_attention(q, k, v, bias, p, is_causal, scale=scale)
        return out.transpose(1, 2)
    if isinstance(attn_bias, BlockDiagonalMask):
        of_q, of_k = attn_bias.q_seqinfo, attn_bias.k_seqinfo
        options = FlashOptions(
            2, isinstance(attn_bias, BlockDiagonalCausalMask), (-1, -1), False,
            of_q.offsets_on(query.device), of_k.offsets_on(query.device), of_q.max_seqlen,
            of_k.max_seqlen,
        )  # fmt: skip
        q, k, v = (tensor.flatten(0, 1) for tensor in (query, key, value))
        return attend(q, k, v, options)[0].reshape(*query.shape[:-1], value.shape[-1])
    if attn_bias is not None and not isinstance(attn_bias, LowerTriangularMask):
        raise NotImplementedError(UNKNOWN_BIAS.format(type(attn_bias)))
    return attend(query, key, value, FlashOptions(2, attn_bias is not None, (-1, -1)))[0]


class SwiGLU(nn.Module):
    """w3(silu(w1(x)) * w2(x)), the first two as one product where they are packed."""

    def __init__(
        self, in_features: int, hidden_features: int, out_features: int | None = None,
        bias: bool = True, *, _pack_weights: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        out_features = out_features or in_features
        self.w12: nn.Linear | None = None
        if _pack_weights:
            self.w12 = nn.Linear(in_features, 2 * hidden_features, bias=bias)
        else:
            self.w1 = nn.Linear(in_features, hidden_features, bias=bias)
            self.w2 = nn.Linear(in_features, hidden_features, bias=bias)
        self.w3 = nn.Linear(hidden_features, out_features, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.w12 is None:
            gate, up = self.w1(x), self.w2(x)
        else:
            gate, up = self.w12(x).chunk(2, dim=-1)
        result: Tensor = self.w3(F.silu(gate) * up)
        return result


def unbind(x: Tensor, dim: int) -> tuple[Tensor, ...]:
    return torch.unbind(x, dim)


__all__ = [
    "AttentionBias",
    "BlockDiagonalCausalMask",
    "BlockDiagonalMask",
    "LowerTriangularMask",
    "SwiGLU",
    "memory_efficient_attention",
    "unbind",
]

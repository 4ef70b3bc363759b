"""Causal self-attention: full or grouped heads, over all previous tokens or a sliding window.

Axes: `batch`, `sequence`, `width`; `heads` of queries, `kv_heads` of keys and values, `head_dim`;
`keys` are as many as the sequence, or more with a KV cache.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torchtally.train.models.config import TransformerConfig
from torchtally.train.models.linear import Linear
from torchtally.train.models.norms import rms_norm_of
from torchtally.train.models.past import Past
from torchtally.train.models.rotary import Rotary

HALVES = (torch.float16, torch.bfloat16)


def window_mask(
    sequence: int, window: int | None, device: torch.device
) -> Bool[Tensor, "sequence sequence"] | None:
    """[q, k] is true where q - window < k <= q. None where the window has no effect, so that the
    causal kernel can be used.
    """
    if window is None or window >= sequence:
        return None
    at = torch.arange(sequence, device=device)
    behind = at[:, None] - at
    return (behind >= 0) & (behind < window)


def document_mask(
    ids: Int[Tensor, "batch sequence"], start: int, window: int | None
) -> Bool[Tensor, "batch 1 sequence sequence"]:
    """[b, 0, q, k] is true where k <= q, in the window and in the same document; a document begins
    with the id `start`, which is also what the one before ends with.
    """
    documents = (ids == start).cumsum(dim=1)
    at = torch.arange(ids.shape[1], device=ids.device)
    behind = at[:, None] - at
    is_near = (behind >= 0) & (behind < (window or ids.shape[1]))
    return (documents[:, None, :, None] == documents[:, None, None, :]) & is_near


def attend(
    q: Float[Tensor, "batch heads sequence head_dim"],
    k: Float[Tensor, "batch kv_heads keys head_dim"],
    v: Float[Tensor, "batch kv_heads keys head_dim"],
    mask: Bool[Tensor, "*batch sequence sequence"] | None,
    dropout: float,
    is_causal: bool,
    scale: float | None = None,
) -> Float[Tensor, "batch heads sequence head_dim"]:
    """softmax(q k^T * scale) v, under the mask, causally or over all keys; the scale is
    1 / sqrt(head_dim) unless given.
    """
    is_grouped = q.shape[1] != k.shape[1]
    if is_grouped and not _takes_groups(q, mask):
        group = q.shape[1] // k.shape[1]
        k, v = (tensor.repeat_interleave(group, dim=1) for tensor in (k, v))
        is_grouped = False
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=is_causal, enable_gqa=is_grouped,
        scale=scale,
    )  # fmt: skip


def _takes_groups(q: Tensor, mask: Tensor | None) -> bool:
    """Whether a fused kernel takes grouped heads. On CUDA only FlashAttention does, for float16 and
    bfloat16 without a mask; otherwise PyTorch would use the math fallback, which materializes all
    scores, while repeated heads still get the memory-efficient kernel (sdp_utils.cpp).
    """
    return q.device.type == "cpu" or (mask is None and q.dtype in HALVES)


class CausalAttention(nn.Module):
    """Attention with one matrix for query, key and value of all heads, and one output matrix."""

    def __init__(
        self, config: TransformerConfig, *, window: int | None, gain: float, recomputes: bool
    ) -> None:
        super().__init__()
        d, D, std = config.width, config.head_size, config.init_std
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, D
        self.dropout, self.recomputes, self.window = config.dropout, recomputes, window
        self.scale = None if config.query_scalar is None else config.query_scalar**-0.5
        rows, has_bias = (config.heads + 2 * config.kv_heads) * D, config.has_bias
        self.qkv = Linear(d, rows, has_bias=has_bias or config.has_qkv_bias, std=std)
        self.q_norm = rms_norm_of(config, D) if config.has_qk_norm else None
        self.k_norm = rms_norm_of(config, D) if config.has_qk_norm else None
        self.output = Linear(config.heads * D, d, has_bias=has_bias, gain=gain, std=std)

    def forward(
        self,
        x: Float[Tensor, "batch sequence width"],
        rotary: Rotary | None,
        mask: Bool[Tensor, "*any sequence sequence"] | None = None,
        past: Past | None = None,
    ) -> Float[Tensor, "batch sequence width"]:
        """Output of attention. With a past, `x` are the first tokens, or the next one."""
        begin = 0 if past is None else past.tokens
        q, k, v = (tensor.transpose(1, 2) for tensor in self._project(x, rotary, begin))
        if past is not None:
            k, v = past.extend(k, v)
        if begin and self.window is not None:
            k, v = k[:, :, -self.window :], v[:, :, -self.window :]
        dropout = self.dropout if self.training else 0.0
        is_causal = mask is None and not begin
        if self.recomputes and torch.is_grad_enabled():
            attended = checkpoint(
                attend, q, k, v, mask, dropout, is_causal, self.scale, use_reentrant=False
            )
        else:
            attended = attend(q, k, v, mask, dropout, is_causal, self.scale)
        joined: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return joined

    def _project(self, x: Tensor, rotary: Rotary | None, begin: int) -> tuple[Tensor, ...]:
        """q, k, v, each (batch, sequence, heads or kv_heads, head_dim), q and k rotated
        together.
        """
        h, k = self.heads, self.kv_heads
        qkv = self.qkv(x).unflatten(-1, (h + 2 * k, self.head_dim))
        if self.q_norm is not None and self.k_norm is not None:
            query, key, value = qkv.split((h, k, k), dim=2)
            query, key = self.q_norm(query), self.k_norm(key)
            turned = (query, key) if rotary is None else (rotary(query, begin), rotary(key, begin))
            return (*turned, value)
        if rotary is None:
            return tuple(qkv.split((h, k, k), dim=2))
        turning, value = qkv.split((h + k, k), dim=2)
        return (*rotary(turning, begin).split((h, k), dim=2), value)

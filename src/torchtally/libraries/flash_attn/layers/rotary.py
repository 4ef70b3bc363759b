"""flash_attn.layers.rotary: rotary embeddings by one kernel."""

from typing import Any

import torch
from torch import Tensor, nn

from torchtally.libraries.operators.layers import RotaryFunction


def apply_rotary_emb(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, inplace: bool = False,
    seqlen_offsets: Any = 0, cu_seqlens: Tensor | None = None, max_seqlen: int | None = None,
    conjugate: bool = False,
) -> Tensor:  # fmt: skip
    result: Tensor = RotaryFunction.apply(x, cos, sin, inplace)  # type: ignore[no-untyped-call]
    return result


apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_qkv_(
    qkv: Tensor, cos: Tensor, sin: Tensor, *args: Any, **options: Any
) -> Tensor:
    """Queries and keys of (B, S, 3, H, D), in place."""
    q, k, v = qkv.unbind(2)
    turned = [RotaryFunction.apply(part, cos, sin, False) for part in (q, k)]  # type: ignore[no-untyped-call]
    return torch.stack([*turned, v], dim=2)


class RotaryEmbedding(nn.Module):
    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.dim, self.base, self.interleaved = dim, float(base), interleaved
        powers = torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim
        self.register_buffer("inv_freq", 1.0 / (self.base**powers), persistent=False)
        self._length = 0

    def _update(self, length: int, device: Any, dtype: torch.dtype) -> None:
        if length > self._length:
            self._length = length
            steps = torch.arange(length, device=device, dtype=torch.float32)
            angles = torch.outer(steps, self.get_buffer("inv_freq").to(device))
            self._cos, self._sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def forward(
        self, qkv: Tensor, kv: Tensor | None = None, seqlen_offset: Any = 0,
        cu_seqlens: Tensor | None = None, max_seqlen: int | None = None, **options: Any,
    ) -> Any:  # fmt: skip
        self._update(max_seqlen or qkv.shape[1], qkv.device, qkv.dtype)
        if kv is None:
            return apply_rotary_emb_qkv_(qkv, self._cos, self._sin)
        key, value = kv.unbind(2)
        turned = apply_rotary_emb(key, self._cos, self._sin)
        query = apply_rotary_emb(qkv, self._cos, self._sin)
        return query, torch.stack([turned, value], dim=2)

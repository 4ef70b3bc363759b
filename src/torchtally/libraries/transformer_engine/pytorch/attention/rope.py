"""Rotary embeddings, as transformer_engine.pytorch.attention gives them: by one kernel."""

from typing import Any

import torch
from torch import Tensor, nn


class RotaryPositionEmbedding(nn.Module):
    inv_freq: Tensor

    def __init__(
        self,
        dim: int,
        rotary_percent: float = 1.0,
        seq_len_interpolation_factor: int | None = None,
        pretrained_max_position_embeddings: int | None = None,
        rotary_base: float = 10000.0,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        dim = int(dim * min(1.0, rotary_percent))
        powers = torch.arange(0, dim, 2, dtype=torch.float32, device="cuda") / dim
        self.register_buffer("inv_freq", 1.0 / rotary_base**powers)

    def forward(self, max_seq_len: int, offset: int = 0) -> Tensor:
        """Angles, (max_seq_len, 1, 1, dim)."""
        places = torch.arange(max_seq_len, device="cuda", dtype=torch.float32) + offset
        angles = places[:, None] * self.inv_freq
        return torch.cat((angles, angles), dim=-1)[:, None, None]


class RotaryFunction(torch.autograd.Function):
    """Keeps the angles alone: backward turns the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, angles: Tensor) -> Tensor:
        ctx.save_for_backward(angles)
        result: Tensor = torch.ops.transformer_engine.rotary(x, angles)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (angles,) = ctx.saved_tensors
        return torch.ops.transformer_engine.rotary(grad, angles), None


def apply_rotary_pos_emb(
    t: Tensor,
    freqs: Tensor,
    tensor_format: str = "sbhd",
    start_positions: Tensor | None = None,
    interleaved: bool = False,
    fused: bool = False,
    cu_seqlens: Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
) -> Tensor:
    if not fused:
        raise NotImplementedError(
            "tally knows Transformer Engine's rotary embeddings with fused=True alone"
        )
    rotated: Tensor = RotaryFunction.apply(t, freqs.float())  # type: ignore[no-untyped-call]
    return rotated

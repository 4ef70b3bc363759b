"""flash_attn.ops.triton.layer_norm: norms of a sum with the residual, by torch's fused ones."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ..rms_norm import RMSNorm as RMSNorm


def layer_norm_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None = None,
    eps: float = 1e-6, prenorm: bool = False, residual_in_fp32: bool = False,
    is_rms_norm: bool = False, **options: Any,
) -> Any:  # fmt: skip
    total = x if residual is None else x + residual
    kept = total.float() if residual_in_fp32 else total
    if is_rms_norm:
        normed = F.rms_norm(total, weight.shape, weight, eps)
    else:
        normed = F.layer_norm(total, weight.shape, weight, bias, eps)
    return (normed, kept) if prenorm else normed


def rms_norm_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, residual: Tensor | None = None,
    eps: float = 1e-6, prenorm: bool = False, residual_in_fp32: bool = False, **options: Any,
) -> Any:  # fmt: skip
    return layer_norm_fn(
        x, weight, bias, residual, eps, prenorm, residual_in_fp32, is_rms_norm=True
    )

"""Norms of apex.normalization.fused_layer_norm: torch's fused ones, which keep the same."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


class FusedLayerNorm(nn.LayerNorm):
    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine)


class FusedRMSNorm(nn.RMSNorm):
    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine)


MixedFusedLayerNorm, MixedFusedRMSNorm = FusedLayerNorm, FusedRMSNorm


def fused_layer_norm_affine(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    normalized_shape: Any,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    return F.layer_norm(input, tuple(normalized_shape), weight, bias, eps)


def fused_rms_norm_affine(
    input: Tensor,
    weight: Tensor,
    normalized_shape: Any,
    eps: float = 1e-6,
    memory_efficient: bool = False,
) -> Tensor:
    return F.rms_norm(input, list(normalized_shape), weight, eps)


class FusedLayerNormAffineFunction:
    """The autograd function of the first of these, as modules of other libraries call it."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, weight: Tensor, bias: Tensor, normalized_shape: Any, eps: float,
        memory_efficient: bool = False,
    ) -> Tensor:  # fmt: skip
        is_number = isinstance(normalized_shape, int)
        shape = (normalized_shape,) if is_number else normalized_shape
        return fused_layer_norm_affine(input, weight, bias, shape, eps)

    @classmethod
    def apply(cls, *args: Any) -> Tensor:
        """The function and its gradient, which are torch's."""
        return cls.forward(None, *args)

"""transformer_engine.pytorch.module: products with what stands before them."""

from .fp8_padding import Fp8Padding, Fp8Unpadding
from .grouped_linear import GroupedLinear
from .layernorm_linear import LayerNorm, LayerNormLinear, RMSNorm
from .layernorm_mlp import LayerNormMLP
from .linear import Linear

__all__ = [
    "Fp8Padding",
    "Fp8Unpadding",
    "GroupedLinear",
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "Linear",
    "RMSNorm",
]

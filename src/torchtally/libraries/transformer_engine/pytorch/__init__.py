"""transformer_engine.pytorch: modules whose products are in float8 within `autocast`."""

from . import cross_entropy, distributed, fp8, ops, optimizers, router, tensor
from .attention import DotProductAttention, MultiheadAttention, RotaryPositionEmbedding
from .distributed import CudaRNGStatesTracker, checkpoint
from .fp8 import fp8_model_init
from .module import (
    Fp8Padding,
    Fp8Unpadding,
    GroupedLinear,
    LayerNorm,
    LayerNormLinear,
    LayerNormMLP,
    Linear,
    RMSNorm,
)
from .permutation import (
    moe_permute,
    moe_permute_with_probs,
    moe_sort_chunks_by_index,
    moe_sort_chunks_by_index_with_probs,
    moe_unpermute,
)
from .quantization import (
    autocast,
    fp8_autocast,
    get_default_recipe,
    is_fp8_available,
    is_fp8_block_scaling_available,
    is_mxfp8_available,
    is_nvfp4_available,
)
from .transformer import TransformerLayer

__all__ = [
    "CudaRNGStatesTracker",
    "DotProductAttention",
    "Fp8Padding",
    "Fp8Unpadding",
    "GroupedLinear",
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "Linear",
    "MultiheadAttention",
    "RMSNorm",
    "RotaryPositionEmbedding",
    "TransformerLayer",
    "autocast",
    "checkpoint",
    "cross_entropy",
    "distributed",
    "fp8",
    "fp8_autocast",
    "fp8_model_init",
    "get_default_recipe",
    "is_fp8_available",
    "is_fp8_block_scaling_available",
    "is_mxfp8_available",
    "is_nvfp4_available",
    "moe_permute",
    "moe_permute_with_probs",
    "moe_sort_chunks_by_index",
    "moe_sort_chunks_by_index_with_probs",
    "moe_unpermute",
    "ops",
    "optimizers",
    "router",
    "tensor",
]

"""Which attention kernel PyTorch takes on a GPU by default."""

from torchtally.plan.activations.setting import AttentionKernel, Implementation
from torchtally.plan.architecture.geometry import needs_mask
from torchtally.plan.architecture.model import Model, SelfAttention
from torchtally.plan.recipes import Recipe

GROUPED_MOST_HEAD_DIM = 256
"""Above it transformers repeats keys and values to all heads (`use_gqa_in_sdpa`)."""
ALIGNED_ELEMENTS = 4
"""In float32 the memory-efficient kernel wants heads of a multiple of so many elements."""


def usual_kernel(
    model: Model, recipe: Recipe, sequence: int, implementation: Implementation
) -> AttentionKernel:
    """MATH where no fused kernel of PyTorch takes what transformers gives it, or transformers gives
    it nothing: capped scores, sinks, older families. Else FLASH.

    In half precision one always does. In float32 there is the memory-efficient kernel alone, which
    refuses grouped heads and odd head dims (PyTorch, sdp_utils.cpp); a window shorter than the
    sequence is a mask, with which transformers repeats keys and values, so that they are no longer
    grouped. Kernels of Megatron's kind are fused by name.
    """
    if implementation is Implementation.FUSED:
        return AttentionKernel.FLASH
    is_wide = recipe.activation_bytes == 4
    is_math = any(
        kind.attention.is_written_out
        or kind.attention.is_capped
        or kind.attention.sinks
        or (is_wide and _is_refused(kind.attention, sequence))
        for kind in model.kinds
        if isinstance(kind.attention, SelfAttention)
    )
    return AttentionKernel.MATH if is_math else AttentionKernel.FLASH


def _is_refused(self_attention: SelfAttention, sequence: int) -> bool:
    stays_grouped = (
        self_attention.kv_heads < self_attention.heads
        and self_attention.head_dim <= GROUPED_MOST_HEAD_DIM
    )
    return self_attention.head_dim % ALIGNED_ELEMENTS != 0 or (
        stays_grouped and not needs_mask(self_attention, sequence)
    )

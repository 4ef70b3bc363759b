"""Who attends to whom in a layer, and what transformers gives PyTorch for it."""

from torchtally.plan.architecture.model import LatentAttention, SelfAttention
from torchtally.work.geometry import Geometry, causal


def geometry_of(attention: SelfAttention | LatentAttention, sequence: int) -> Geometry:
    """What a token attends to, as the model means it."""
    if isinstance(attention, LatentAttention):
        return causal(sequence)
    return causal(sequence, attention.window, is_chunked=attention.is_chunked)


def needs_mask(attention: SelfAttention | LatentAttention | None, sequence: int) -> bool:
    """PyTorch's attention knows no windows: transformers gives it a mask as a tensor, from a
    sequence as long as the window or the chunk on (masking_utils.py, `_ignore_causal_mask_sdpa`).
    """
    window = attention.window if isinstance(attention, SelfAttention) else None
    return window is not None and window <= sequence

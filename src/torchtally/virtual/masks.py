"""Masks of `scaled_dot_product_attention`: made to be added, padded, and what they attend to.

B, H: batch, heads.  S, T: queries, keys.
"""

from math import prod

import torch
from torch import Tensor

from torchtally.virtual import values
from torchtally.virtual.facts.spans import spans_of
from torchtally.virtual.storage import virtual_of


def additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A bool mask as 0 where it attends and minus infinity where it does not."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    kept = torch.scalar_tensor(0.0, dtype=dtype, device="cuda")
    return torch.where(mask, kept, torch.scalar_tensor(-torch.inf, dtype=dtype, device="cuda"))


BIAS_ALIGNMENT = 8
"""Elements that the efficient kernel reads of a bias at a time."""


def align(bias: Tensor) -> Tensor:
    """A bias whose rows begin at multiples of 8 elements: itself, or a view into a padded copy.

    It is padded in its own shape and expanded afterwards (`preprocess_mask` and `pad_bias` of
    native/transformers/attention.cpp), so a mask that all heads share is copied once.
    """
    *strides, last = bias.stride()
    if last == 1 and all(stride % BIAS_ALIGNMENT == 0 for stride in strides):
        return bias
    keys = bias.shape[-1]
    padding = BIAS_ALIGNMENT - keys % BIAS_ALIGNMENT
    return torch.nn.functional.pad(bias, (0, padding))[..., :keys]


def keep_attended(mask: Tensor | None, bias: Tensor | None, scores: tuple[int, ...]) -> None:
    """Let a bias that was made of a mask know what the mask attends to, if its values are known.

    `scores` is (B, H, S, T). Kept are two counts of their elements: with every query taken to
    attend to as many keys as the one that attends to most, and those that the mask leaves.
    """
    virtual = None if bias is None else virtual_of(bias)
    counts = None if mask is None else counts_of(mask, scores[-1])
    if virtual is None or counts is None or not counts.numel():
        return
    queries = prod(scores[:-1])
    times = queries // counts.numel()
    virtual.attended = (queries * int(counts.max()), times * int(counts.sum()))


def counts_of(mask: Tensor, T: int) -> Tensor | None:
    """Numbers of keys to which each query attends, of those that have a row of their own in the
    mask.
    """
    real = values.real_of(mask)
    if real is None:
        spans = spans_of(mask)
        return None if spans is None else spans.counts
    if real.dtype is not torch.bool:
        return None
    keys = real.expand(*real.shape[:-1], T)
    # Heads and sequences that share a mask, as most do, are counted once.
    for place, stride in enumerate(keys.stride()[:-1]):
        if stride == 0:
            keys = keys.narrow(place, 0, 1)
    return keys.sum(-1)

"""Stochastic rounding from float32 to bfloat16, unbiased in the mean.

A bfloat16 has 8 significant bits, so rounding to nearest always loses updates below 1/512 of the
weight; stochastic rounding applies them in proportion to their size (Gupta et al. 2015, arXiv
1502.02551; Zamirai et al. 2020, arXiv 2010.06192).
"""

from math import nan

import torch
from jaxtyping import BFloat16, Float32, Int16
from torch import Tensor

DROPPED_BITS = 16
"""A bfloat16 is the upper half of a float32."""
DROPPED_MASK = (1 << DROPPED_BITS) - 1
KEPT_MASK = ~DROPPED_MASK
WORDS_PER_DRAW = 64 // DROPPED_BITS


def round_stochastically(
    numbers: Float32[Tensor, "..."], generator: torch.Generator | None = None
) -> BFloat16[Tensor, "..."]:
    """Each number rounded to one of its two neighbours in bfloat16.

    A number at fraction d between its neighbours rounds up with probability d, to 16 bits. Exact
    values, inf and NaN are unchanged. Above the largest finite bfloat16 the upper neighbour is inf,
    as in rounding to nearest.
    """
    # The bits of a float, sign aside, are ordered like its magnitude: adding uniform noise to the
    # dropped half carries into the kept half with the required probability.
    noise = _words(numbers.shape, numbers.device, generator).to(torch.int32)
    noise.bitwise_and_(DROPPED_MASK).add_(numbers.contiguous().view(torch.int32))
    rounded = noise.bitwise_and_(KEPT_MASK).view(torch.float32).to(torch.bfloat16)
    # A carry could turn a NaN into another number.
    return rounded.masked_fill_(numbers.isnan(), nan)


def _words(
    shape: torch.Size, device: torch.device, generator: torch.Generator | None
) -> Int16[Tensor, "..."]:
    """16 random bits each, four per 64-bit draw: drawing dominates the cost of rounding."""
    count = shape.numel()
    draws = torch.empty(-(-count // WORDS_PER_DRAW), dtype=torch.int64, device=device)
    draws.random_(torch.iinfo(torch.int64).min, None, generator=generator)
    return draws.view(torch.int16)[:count].view(shape)

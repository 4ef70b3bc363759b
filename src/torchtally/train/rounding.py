"""From float32 to bfloat16 by chance: up or down, so that the mean over many draws is the number.

A bfloat16 has 8 significant bits. An update below 1/512 of its weight is lost to nearest rounding,
each time; rounded stochastically it arrives in so many steps out of many (Gupta et al. 2015, arXiv
1502.02551; Zamirai et al. 2020, arXiv 2010.06192).
"""

from math import nan

import numpy as np
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
    """One of each number's two neighbours in bfloat16, the nearer one the more likely.

    A number d of the way from its lower to its upper neighbour becomes the upper with probability
    d, to 16 bits. What bfloat16 holds exactly stays, as do inf and nan. Above the largest finite
    bfloat16 the upper neighbour is inf, as for nearest rounding.
    """
    # The bits of a float, sign aside, count up as its magnitude does: noise below the cut carries
    # into the kept half with just that probability.
    noise = _words(numbers.shape, numbers.device, generator).to(torch.int32)
    noise.bitwise_and_(DROPPED_MASK).add_(numbers.contiguous().view(torch.int32))
    rounded = noise.bitwise_and_(KEPT_MASK).view(torch.float32).to(torch.bfloat16)
    # A nan's bits could carry into those of another number.
    return rounded.masked_fill_(numbers.isnan(), nan)


def _words(
    shape: torch.Size, device: torch.device, generator: torch.Generator | None
) -> Int16[Tensor, "..."]:
    """16 random bits each, four of them to a draw: a generator's draws cost most of rounding."""
    count = shape.numel()
    draws = torch.empty(-(-count // WORDS_PER_DRAW), dtype=torch.int64, device=device)
    draws.random_(torch.iinfo(torch.int64).min, None, generator=generator)
    return draws.view(torch.int16)[:count].view(shape)


def seed_of_update(seed: int, update: int) -> int:
    """The seed of one update's draws, so that going on from a count needs no generator's state."""
    sequence = np.random.SeedSequence(seed, spawn_key=(update,))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))

"""A seed of its own for each source of randomness, all of them from the one seed of a run.

The seed of a source is the first word of NumPy's SeedSequence whose entropy is the run's seed and
whose spawn key is the source's name in UTF-8. So sources are independent of each other, a new
source changes none of the others, and the seed of any source can be computed again from two things
that a log has: the run's seed and the name.
"""

from enum import StrEnum

import numpy as np


class Source(StrEnum):
    """What draws random numbers in a training."""

    INITIALISATION = "initialisation"
    ORDER = "order"
    VALIDATION_ORDER = "validation order"
    DROPOUT = "dropout"
    ROUNDING = "stochastic rounding"
    SAMPLING = "sampling"
    DATA_CHECK = "data check"


def seed_of(source: Source, seed: int) -> int:
    """An integer below 2**63, fit for `torch.Generator.manual_seed`; `seed` is 0 or more."""
    sequence = np.random.SeedSequence(seed, spawn_key=tuple(source.encode()))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))

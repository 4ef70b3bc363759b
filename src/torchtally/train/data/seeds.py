"""A separate seed for each source of randomness, derived from the one seed of a run.

It is the first word of NumPy's SeedSequence with the run's seed as entropy and the source's name in
UTF-8 as spawn key. So sources are independent, adding one changes no other, and any seed can be
recomputed from the run's seed and the source's name.
"""

from enum import StrEnum

from torchtally.checkpoints.seeds import derive_seed


class Source(StrEnum):
    """A consumer of random numbers in a training."""

    INITIALISATION = "initialisation"
    ORDER = "order"
    VALIDATION_ORDER = "validation order"
    DROPOUT = "dropout"
    ROUNDING = "stochastic rounding"
    SAMPLING = "sampling"
    DATA_CHECK = "data check"


def seed_of(source: Source, seed: int) -> int:
    """The seed of a source of the run with this seed."""
    return derive_seed(seed, *source.encode())

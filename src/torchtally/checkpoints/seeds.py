"""Seeds of independent streams of random numbers."""

import numpy as np


def derive_seed(seed: int, *key: int) -> int:
    """An integer below 2**63, fit for `torch.Generator.manual_seed`; `seed` is 0 or more."""
    sequence = np.random.SeedSequence(seed, spawn_key=key)
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))

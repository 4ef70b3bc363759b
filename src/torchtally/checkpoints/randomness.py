"""The states of a process's random number generators: Python's, NumPy's legacy one, torch's on the
host and on each GPU.

Data order, initialisation and rounding are pure functions of seed and step, without state.
"""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from torchtally.errors import CheckpointError


def random_states() -> dict[str, Any]:
    """Copies of the states, of types that `packing` takes."""
    version, words, normal = random.getstate()
    return {
        "python": (version, np.array(words, np.uint32), normal),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
    }


def seed_all(seed: int) -> None:
    """Seed all generators of the process."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def set_random_states(states: Mapping[str, Any]) -> None:
    """Restore saved states, if there are any. Raises CheckpointError for invalid ones."""
    if not states:
        return
    try:
        version, words, normal = states["python"]
        random.setstate((version, tuple(words.tolist()), normal))
        np.random.set_state(states["numpy"])
        torch.set_rng_state(states["torch"])
        if torch.cuda.is_available():
            torch.cuda.set_rng_state_all(states["cuda"])
    except (LookupError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise CheckpointError(f"The saved random states are invalid: {error}.") from error

"""The states of a process's random number generators, as tensors.

    python   the 625 words of `random`; python_normal: its cached normal, if any
    numpy    the 624 words and position of numpy.random's legacy generator; numpy_normal likewise
    torch    as torch returns it       cuda/0   of each GPU, as torch returns it

Data order, initialisation and rounding are pure functions of seed and step, without state.
"""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtally.checkpoints.manifest import Manifest
from torchtally.checkpoints.storage import torch_dtype
from torchtally.errors import CheckpointError

RANDOM = "random/"


def random_states() -> dict[str, Tensor]:
    """Copies of the states, by name."""
    version, words, kept_back = random.getstate()
    assert version == 3  # since Python 2.6
    legacy: dict[str, Any] = np.random.get_state(legacy=False)
    random_states = {
        "python": torch.tensor(words, dtype=torch.int64),
        "python_normal": _normal(kept_back is not None, kept_back),
        "numpy": torch.tensor(
            [*legacy["state"]["key"].tolist(), legacy["state"]["pos"]], dtype=torch.int64
        ),
        "numpy_normal": _normal(legacy["has_gauss"], legacy["gauss"]),
        "torch": torch.get_rng_state(),
    }
    for index in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0):
        random_states[f"cuda/{index}"] = torch.cuda.get_rng_state(index)
    return random_states


def seed_all(seed: int) -> None:
    """Seed all generators of the process."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def set_random_states(states: Mapping[str, Tensor]) -> None:
    """Restore saved states. Raises CheckpointError for invalid ones."""
    try:
        has_normal, normal = states["python_normal"].tolist()
        words = tuple(states["python"].tolist())
        random.setstate((3, words, normal if has_normal else None))
        *key, position = states["numpy"].tolist()
        has_normal, normal = states["numpy_normal"].tolist()
        legacy = {
            "bit_generator": "MT19937",
            "state": {"key": np.array(key, np.uint32), "pos": position},
            "has_gauss": int(has_normal),
            "gauss": normal,
        }
        np.random.set_state(legacy)
        torch.set_rng_state(states["torch"])
        for name, state in states.items():
            if name.startswith("cuda/") and torch.cuda.is_available():
                torch.cuda.set_rng_state(state, int(name.removeprefix("cuda/")))
    except (LookupError, TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise CheckpointError(f"The saved random states are invalid: {error}.") from error


def random_tensors(rank: int) -> dict[str, Tensor]:
    """The random states of this process, as a rank's tensors."""
    return {_random(rank) + name: state for name, state in random_states().items()}


def saved_random(manifest: Manifest, rank: int) -> dict[str, Tensor]:
    """Tensors to read a rank's random states into; empty if that rank did not exist."""
    return {
        name: torch.empty(saved_tensor.shape, dtype=torch_dtype(saved_tensor))
        for name, saved_tensor in manifest.tensors.items()
        if name.startswith(_random(rank))
    }


def set_random(tensors: Mapping[str, Tensor]) -> None:
    """Restore random states that were read, if there are any."""
    if tensors:
        set_random_states({name.split("/", 2)[2]: state for name, state in tensors.items()})


def _random(rank: int) -> str:
    return f"{RANDOM}{rank:05}/"


def _normal(is_there: Any, value: float | None) -> Tensor:
    """(is one cached, its value): generators draw normals in pairs and cache the second."""
    return torch.tensor([float(is_there), value or 0.0], dtype=torch.float64)

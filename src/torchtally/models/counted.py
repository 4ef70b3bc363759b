"""A configuration's parameters, counted in the class of transformers that it names."""

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchtally.errors import UsageError
from torchtally.models.sources import model_source

EXPERTS = re.compile(r"(^|\.)experts\.")
"""A module of experts among which a router chooses; shared ones have names of their own."""
COUNT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
ACTIVE_KEYS = (
    "num_experts_per_tok", "num_experts_per_token", "num_selected_experts", "moe_k",
    "top_k_experts", "moe_topk",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CountedModel:
    """What the class says of itself: numbers, and no shape."""

    name: str
    """Of the class."""
    parameters: int
    """A weight that two modules share counts once."""
    active: int
    """Those that one token meets; all but for a mixture of experts."""


def count_model(path: str) -> CountedModel:
    """The parameters of a config.json's own class, built without memory on the meta device.

    Raises UsageError where transformers is missing or refuses the file, and where a mixture of
    experts does not say how many of them a token meets.
    """
    with torch.device("meta"):
        model = model_source(path).build()
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    total = sum(sizes.values())
    in_experts = sum(size for name, size in sizes.items() if EXPERTS.search(name))
    idle = in_experts - _active(in_experts, model, path) if in_experts else 0
    return CountedModel(type(model).__name__, total, total - idle)


def _active(in_experts: int, model: nn.Module, path: str) -> int:
    """Of the experts' parameters, as many as the share of them that a token meets."""
    config: Any = model.config
    config = config.get_text_config()
    experts, active = (_first(config, keys) for keys in (COUNT_KEYS, ACTIVE_KEYS))
    if experts is None or active is None:
        raise UsageError(
            f"{path}: a mixture of experts that does not say how many of them a token meets.\n"
            f"Give its active parameters alone: --parameters 3B."
        )
    return in_experts * active // experts


def _first(config: Any, keys: tuple[str, ...]) -> int | None:
    values = (getattr(config, key, None) for key in keys)
    return next((value for value in values if isinstance(value, int)), None)

"""Hybrids beside transformers' own classes: FLOPs, caches and activations; and sums by hand."""

import os

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.plan.config_cases import CASES, Keys
from torchtally.plan.activations.kept import layer_saved
from torchtally.plan.activations.setting import setting_of
from torchtally.plan.architecture.config import from_values
from torchtally.plan.architecture.model import Model
from torchtally.plan.flops import head_flops, recurrence_flops, token_flops
from torchtally.plan.kv_cache import Cache, CacheKind, kv_cache_bytes
from torchtally.plan.recipes import recipe

MAMBA_2 = "mamba2"
HYBRIDS = (
    "mamba", MAMBA_2, "bamba", "falcon_h1", "granitemoehybrid, dense", "lfm2", "minimax",
    "olmo_hybrid", "qwen3_5_text",
)  # fmt: skip
EIGHTS: Keys = {"num_experts": 8, "num_local_experts": 8, "moe_intermediate_size": 24}
"""Torch's grouped products want rows of 16 bytes."""


def built(case: str, dtype: torch.dtype, device: str) -> tuple[Model, Any]:
    import transformers

    transformers.logging.set_verbosity_error()
    model_type, keys = CASES[case]
    keys = keys | {name: size for name, size in EIGHTS.items() if name in keys}
    ours = from_values(keys | {"model_type": model_type}, name=case, place="config.json")
    config = transformers.CONFIG_MAPPING[model_type](**keys)
    with torch.device(device):
        return ours, transformers.AutoModelForCausalLM.from_config(config).to(dtype)

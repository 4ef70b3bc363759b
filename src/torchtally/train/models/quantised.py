"""Weights of 8 or 4 bits for inference: quantised by torchao, stored as compressed-tensors.

Matrices of the layers are quantised, with a scale for each row, or for each 32 numbers of it
(int4). Embedding, head and norms stay. transformers and vLLM load the format:
https://github.com/vllm-project/compressed-tensors.

Axes: `out` rows of `in` numbers; `packed` words of 32 bits.
"""

import logging
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from torchtally.errors import UsageError, needed_package
from torchtally.train.models.config import TransformerConfig
from torchtally.train.models.linear import Linear

GROUP = 32
INT4: Any = getattr(torch, "int4")  # noqa: B009 torch's types do not have it
BITS: Mapping[str, int] = MappingProxyType({"int8": 8, "fp8": 8, "int4": 4})
"""Of a weight, by name."""


def quantise(model: nn.Module, name: str) -> None:
    """Replace the weights of a decoder's layers by quantised ones of torchao.

    Raises UsageError without torchao, and for a model that compressed-tensors cannot hold.
    """
    config: TransformerConfig = getattr(model, "config")  # noqa: B009 nn.Module has Any or Tensor
    if config.positions == "learned":
        raise UsageError(f"{name}: transformers' GPT-2 has no linear layers to quantise.")
    if config.experts is not None:
        raise UsageError(f"{name}: experts cannot be quantised yet. Leave out --weights.")
    if name == "int4" and (config.width % GROUP or config.ffn % GROUP):
        raise UsageError(f"int4: width and ffn must be multiples of {GROUP}, its groups.")
    try:
        logging.disable(logging.WARNING)  # of torchao's kernels for GPUs, which are not here
        torchao = needed_package("torchao.quantization", name, "fp8")
    finally:
        logging.disable(logging.NOTSET)
    kinds = {
        "int8": lambda: torchao.Int8WeightOnlyConfig(version=2),
        "fp8": torchao.Float8WeightOnlyConfig,
        "int4": lambda: torchao.IntxWeightOnlyConfig(
            weight_dtype=INT4, granularity=torchao.PerGroup(GROUP)
        ),
    }
    torchao.quantize_(
        model, kinds[name](), lambda module, place: isinstance(module, Linear) and place != "head"
    )


def quantization_config(name: str) -> dict[str, Any]:
    """The key of a config.json."""
    weights = {
        "num_bits": BITS[name],
        "type": "float" if name == "fp8" else "int",
        "symmetric": True,
        "strategy": "group" if name == "int4" else "channel",
        "group_size": GROUP if name == "int4" else None,
        "dynamic": False,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized" if name == "fp8" else "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }


def tensors_of_rows(weight: Tensor, rows: slice, name: str) -> dict[str, Tensor]:
    """The tensors of some rows, under the names of a weight of this name; one that is not quantised
    as it is.
    """
    values: Tensor | None = getattr(weight, "qdata", None)
    if values is None:
        return {name: weight[rows].contiguous()}
    scale: Tensor = getattr(weight, "scale")  # noqa: B009
    tensors = {f"{name}_scale": scale.reshape(values.shape[0], -1)[rows].contiguous()}
    if values.dtype == torch.float8_e4m3fn:
        return tensors | {name: values[rows].contiguous()}
    bits = 4 if getattr(weight, "target_dtype", None) == INT4 else 8
    return tensors | {
        f"{name}_packed": pack(values[rows], bits),
        f"{name}_shape": torch.tensor(values[rows].shape),
    }


def pack(values: Int[Tensor, "out in"], bits: int) -> Int[Tensor, "out packed"]:
    """Numbers of so many bits, plus half of their range, the first in the lowest bits of a word."""
    each = 32 // bits
    padded = F.pad(values, (0, math.ceil(values.shape[1] / each) * each - values.shape[1]))
    fields = (padded.long() + (1 << (bits - 1))).unflatten(1, (-1, each))
    words: Tensor = (fields << torch.arange(0, 32, bits)).sum(dim=-1)
    return words.to(torch.int32)

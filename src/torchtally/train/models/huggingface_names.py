"""The mapping between our tensors and Hugging Face's names, per kind of checkpoint.

GPT-2 stores matrices as "Conv1D", (in, out), with query, key and value in one; all others store
(out, in), each separately.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from torchtally.train.models.config import TransformerConfig
from torchtally.train.models.huggingface_kinds import kind_of

NO_WEIGHTS = re.compile(r"\.attn\.(masked_)?bias$|\.rotary_emb\.inv_freq$")
"""Untrained masks and tables in older checkpoints."""


@dataclass(frozen=True, slots=True)
class WeightMapping:
    """A Hugging Face tensor, and where it is in ours."""

    theirs: str
    ours: str
    rows: tuple[int, int] | None = None
    """First and last + 1 row of our parameter; None: all of it."""
    is_transposed: bool = False


def weight_mappings(config: TransformerConfig) -> Iterator[WeightMapping]:
    """Every tensor of a checkpoint. Raises UsageError like `kind_of`."""
    kind = kind_of(config)
    q, kv = config.heads * config.head_size, config.kv_heads * config.head_size
    # Of the combined matrix for query, key and value.
    rows = {"q_proj": (0, q), "k_proj": (q, q + kv), "v_proj": (q + kv, q + 2 * kv)}
    for pair in kind.modules.items():
        layers = range(config.layers if "*" in pair[0] else 1)
        experts = range(config.experts or 1 if "**" in pair[0] else 1)
        for layer, expert in product(layers, experts):
            theirs, ours = (
                name.replace("**", str(expert)).replace("*", str(layer)) for name in pair
            )
            is_conv1d = kind.name == "gpt2" and "blocks." in ours and not ours.endswith("norm")
            part = rows.get(theirs.rpartition(".")[2])
            yield WeightMapping(f"{theirs}.weight", f"{ours}.weight", part, is_conv1d)
            if _has_bias(config, ours):
                yield WeightMapping(f"{theirs}.bias", f"{ours}.bias", part)
    if not config.is_tied:
        yield WeightMapping("lm_head.weight", "head.weight")


def _has_bias(config: TransformerConfig, module: str) -> bool:
    if module.endswith("norm"):
        return config.norm == "layer" and config.has_bias
    is_qkv = module.endswith("qkv")
    return "blocks." in module and (config.has_bias or (config.has_qkv_bias and is_qkv))

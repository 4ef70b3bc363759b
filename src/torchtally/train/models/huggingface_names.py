"""The mapping between our tensors and Hugging Face's names, per kind of checkpoint.

GPT-2 stores matrices as "Conv1D", (in, out), with query, key and value in one; Llama and Mistral
store (out, in), each separately.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal

from torchtally.errors import UsageError
from torchtally.train.models.config import TransformerConfig

ModelType = Literal["gpt2", "llama", "mistral"]
"""A model_type of transformers. Mistral is Llama with a sliding window."""

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


def kind_of(config: TransformerConfig) -> ModelType:
    """The model_type of transformers for a config.

    Raises UsageError for a combination that no such class has.
    """
    if config.norm == "rms" and config.positions == "rope" and config.activation == "swiglu":
        if config.window is None:
            return "llama"
        if not config.has_bias:
            return "mistral"
        raise UsageError("window: neither Mistral nor Llama has a window together with biases.")
    is_gpt2 = config.norm == "layer" and config.positions == "learned" and config.has_bias
    if is_gpt2 and config.activation != "swiglu" and config.window is None:
        if config.kv_heads == config.heads:
            return "gpt2"
        raise UsageError("kv_heads: must equal heads in GPT-2.")
    raise UsageError(
        "Hugging Face checkpoints are Llama (rms, rope, swiglu), Mistral (the same with a window "
        "and no bias) or GPT-2 (layer, learned, gelu, with biases): this config has "
        f"norm={config.norm!r}, positions={config.positions!r}, activation={config.activation!r}, "
        f"has_bias={config.has_bias}, window={config.window}."
    )


GPT2 = {
    "ln_1": "attention_norm", "attn.c_attn": "attention.qkv", "attn.c_proj": "attention.output",
    "ln_2": "feed_forward_norm", "mlp.c_fc": "feed_forward.up", "mlp.c_proj": "feed_forward.down",
}  # fmt: skip
LLAMA = {
    "input_layernorm": "attention_norm", "self_attn.q_proj": "attention.qkv",
    "self_attn.k_proj": "attention.qkv", "self_attn.v_proj": "attention.qkv",
    "self_attn.o_proj": "attention.output", "post_attention_layernorm": "feed_forward_norm",
    "mlp.gate_proj": "feed_forward.gate", "mlp.up_proj": "feed_forward.up",
    "mlp.down_proj": "feed_forward.down",
}  # fmt: skip
"""The modules of a layer by their names, and ours."""


def weight_mappings(config: TransformerConfig) -> tuple[WeightMapping, ...]:
    """Every tensor of a checkpoint, in model order. Raises UsageError like `kind_of`."""
    listed = _gpt2(config) if kind_of(config) == "gpt2" else _llama(config)
    head = () if config.is_tied else (WeightMapping("lm_head.weight", "head.weight"),)
    return (*listed, *head)


def _gpt2(config: TransformerConfig) -> Iterator[WeightMapping]:
    yield WeightMapping("transformer.wte.weight", "embedding.weight")
    yield WeightMapping("transformer.wpe.weight", "positions.weight")
    for at, (theirs, ours) in product(range(config.layers), GPT2.items()):
        is_conv1d = not ours.endswith("norm")
        name = f"transformer.h.{at}.{theirs}"
        yield WeightMapping(f"{name}.weight", f"blocks.{at}.{ours}.weight", None, is_conv1d)
        yield WeightMapping(f"{name}.bias", f"blocks.{at}.{ours}.bias")
    yield WeightMapping("transformer.ln_f.weight", "norm.weight")
    yield WeightMapping("transformer.ln_f.bias", "norm.bias")


def _llama(config: TransformerConfig) -> Iterator[WeightMapping]:
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    # Of the combined matrix for query, key and value.
    rows = {
        "self_attn.q_proj": (0, q),
        "self_attn.k_proj": (q, q + kv),
        "self_attn.v_proj": (q + kv, q + 2 * kv),
    }
    yield WeightMapping("model.embed_tokens.weight", "embedding.weight")
    for at, (theirs, ours) in product(range(config.layers), LLAMA.items()):
        has_bias = config.has_bias and not ours.endswith("norm")
        for part in ("weight", "bias") if has_bias else ("weight",):
            yield WeightMapping(
                f"model.layers.{at}.{theirs}.{part}", f"blocks.{at}.{ours}.{part}", rows.get(theirs)
            )
    yield WeightMapping("model.norm.weight", "norm.weight")

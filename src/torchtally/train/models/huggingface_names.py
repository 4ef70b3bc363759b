"""The mapping between our tensors and Hugging Face's names, per kind of checkpoint.

GPT-2 stores matrices as "Conv1D", (in, out), with query, key and value in one; Llama and Mistral
store (out, in), each separately.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
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


def weight_mappings(config: TransformerConfig) -> tuple[WeightMapping, ...]:
    """Every tensor of a checkpoint, in model order. Raises UsageError like `kind_of`."""
    listed = _gpt2(config) if kind_of(config) == "gpt2" else _llama(config)
    return tuple(listed)


def _gpt2(config: TransformerConfig) -> Iterator[WeightMapping]:
    yield WeightMapping("transformer.wte.weight", "embedding.weight")
    yield WeightMapping("transformer.wpe.weight", "positions.weight")
    for at in range(config.layers):
        theirs, ours = f"transformer.h.{at}", f"blocks.{at}"
        yield from _pair(f"{theirs}.ln_1", f"{ours}.attention_norm")
        yield from _conv1d(f"{theirs}.attn.c_attn", f"{ours}.attention.qkv")
        yield from _conv1d(f"{theirs}.attn.c_proj", f"{ours}.attention.output")
        yield from _pair(f"{theirs}.ln_2", f"{ours}.feed_forward_norm")
        yield from _conv1d(f"{theirs}.mlp.c_fc", f"{ours}.feed_forward.up")
        yield from _conv1d(f"{theirs}.mlp.c_proj", f"{ours}.feed_forward.down")
    yield from _pair("transformer.ln_f", "norm")
    if not config.is_tied:
        yield WeightMapping("lm_head.weight", "head.weight")


def _llama(config: TransformerConfig) -> Iterator[WeightMapping]:
    parts = ("weight", "bias") if config.has_bias else ("weight",)
    yield WeightMapping("model.embed_tokens.weight", "embedding.weight")
    for at in range(config.layers):
        theirs, ours = f"model.layers.{at}", f"blocks.{at}"
        yield WeightMapping(f"{theirs}.input_layernorm.weight", f"{ours}.attention_norm.weight")
        for name, rows in _rows(config).items():
            for part in parts:
                yield WeightMapping(
                    f"{theirs}.self_attn.{name}.{part}", f"{ours}.attention.qkv.{part}", rows
                )
        for part in parts:
            yield WeightMapping(
                f"{theirs}.self_attn.o_proj.{part}", f"{ours}.attention.output.{part}"
            )
        yield WeightMapping(
            f"{theirs}.post_attention_layernorm.weight", f"{ours}.feed_forward_norm.weight"
        )
        for name in ("gate", "up", "down"):
            for part in parts:
                yield WeightMapping(
                    f"{theirs}.mlp.{name}_proj.{part}", f"{ours}.feed_forward.{name}.{part}"
                )
    yield WeightMapping("model.norm.weight", "norm.weight")
    if not config.is_tied:
        yield WeightMapping("lm_head.weight", "head.weight")


def _rows(config: TransformerConfig) -> dict[str, tuple[int, int]]:
    """Rows of the combined matrix for query, key and value."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {"q_proj": (0, q), "k_proj": (q, q + kv), "v_proj": (q + kv, q + 2 * kv)}


def _pair(theirs: str, ours: str) -> Iterator[WeightMapping]:
    for part in ("weight", "bias"):
        yield WeightMapping(f"{theirs}.{part}", f"{ours}.{part}")


def _conv1d(theirs: str, ours: str) -> Iterator[WeightMapping]:
    yield WeightMapping(f"{theirs}.weight", f"{ours}.weight", is_transposed=True)
    yield WeightMapping(f"{theirs}.bias", f"{ours}.bias")

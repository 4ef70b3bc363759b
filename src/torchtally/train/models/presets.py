"""Model shapes by name: GPT-2, Llama, and three small Llama-like ones to start with.

GPT-2: https://github.com/openai/gpt-2, and https://huggingface.co/openai-community/gpt2-xl with its
siblings. Llama 3 8B and 70B: arXiv 2407.21783, table 3. Llama 3.2 1B and 3B: their config.json,
except for the context, which is 8192 instead of 131072 tokens.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from torchtally.errors import UsageError, did_you_mean
from torchtally.train.models.config import RopeStretch, TransformerConfig

BYTES = 256
"""Vocabulary of byte-level models."""


def _gpt2(layers: int, width: int, heads: int) -> TransformerConfig:
    return TransformerConfig(
        layers=layers, width=width, heads=heads, kv_heads=heads, ffn=4 * width, vocabulary=50257,
        context=1024, norm="layer", positions="learned", activation="gelu_tanh", is_tied=True,
        has_bias=True,
    )  # fmt: skip


def _llama(
    layers: int, width: int, heads: int, kv_heads: int, ffn: int, *,
    vocabulary: int = 128256, context: int = 8192, is_tied: bool = False,
    rope_theta: float = 500_000.0, rope_stretch: RopeStretch | None = None,
) -> TransformerConfig:  # fmt: skip
    return TransformerConfig(
        layers=layers, width=width, heads=heads, kv_heads=kv_heads, ffn=ffn, vocabulary=vocabulary,
        context=context, is_tied=is_tied, rope_theta=rope_theta,
        rope_stretch=rope_stretch,
    )  # fmt: skip


def _small(
    layers: int, width: int, heads: int, kv_heads: int, ffn: int, vocabulary: int, context: int
) -> TransformerConfig:
    return _llama(
        layers, width, heads, kv_heads, ffn, vocabulary=vocabulary, context=context, is_tied=True,
        rope_theta=10_000.0,
    )  # fmt: skip


LLAMA_3_2 = RopeStretch(factor=32.0)

PRESETS: Mapping[str, TransformerConfig] = MappingProxyType({
    "gpt2-124m": _gpt2(12, 768, 12),
    "gpt2-355m": _gpt2(24, 1024, 16),
    "gpt2-774m": _gpt2(36, 1280, 20),
    "gpt2-1.5b": _gpt2(48, 1600, 25),
    "llama-1m": _small(5, 128, 2, 1, 352, BYTES, 256),
    "llama-10m": _small(6, 384, 6, 2, 1024, BYTES, 512),
    "llama-100m": _small(12, 768, 12, 4, 2048, 32768, 2048),
    "llama-1b": _llama(16, 2048, 32, 8, 8192, is_tied=True, rope_stretch=LLAMA_3_2),
    "llama-3b": _llama(28, 3072, 24, 8, 8192, is_tied=True, rope_stretch=LLAMA_3_2),
    "llama-8b": _llama(32, 4096, 32, 8, 14336),
    "llama-70b": _llama(80, 8192, 64, 8, 28672),
})  # fmt: skip


def preset(name: str, **changes: Any) -> TransformerConfig:
    """The config of a preset, with changes.

    Raises UsageError for an unknown preset, naming similar ones, and for invalid values.
    """
    if name not in PRESETS:
        raise UsageError(f"unknown preset {name!r}. {did_you_mean(name, PRESETS)}")
    return replace(PRESETS[name], **changes)

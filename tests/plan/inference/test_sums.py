"""A sum by hand for every closed form of inference, with its arithmetic written out."""

from dataclasses import replace

import pytest

from tests.plan.dimensions import check_units
from tests.plan.parallel.builders import llama
from torchtally.plan import kv_cache
from torchtally.plan.architecture.model import LatentAttention
from torchtally.plan.inference.formats import weight_format
from torchtally.plan.inference.weights import model_bytes
from torchtally.plan.kv_cache import Cache, CacheKind, cache_format
from torchtally.plan.quantity import Quantity

MODEL = llama(width=8, layers=3, heads=2, kv_heads=1, ffn=20, vocabulary=10)
"""Matrices of a layer: q 8*8, k and v 4*8 each, output 8*8, three of 20*8: 672; two norms of 8."""
(KIND,) = MODEL.kinds
WINDOW = replace(KIND, attention=replace(KIND.attention, window=4))
LATENT = replace(
    KIND,
    attention=LatentAttention(
        heads=2, query_rank=None, kv_rank=5, plain_head_dim=3, rotary_head_dim=2, value_head_dim=4
    ),
)
PAGED, DYNAMIC, STATIC, EXPANDED = CacheKind


def same(found: Quantity, expected: float) -> None:
    check_units(found)
    assert found.value == pytest.approx(expected, rel=1e-12)


def test_a_kv_cache() -> None:
    """Five sequences of 6 tokens; a key and a value are one head of 4 numbers of 2 bytes."""
    same(kv_cache.kv_cache_bytes(MODEL, 6, 5), 3 * 1 * (8 + 8) * 6 * 5)
    same(kv_cache.layer_cache_bytes(WINDOW, 6, 5), 3 * 1 * (8 + 8) * 4 * 5)
    same(kv_cache.layer_cache_bytes(LATENT, 6, 5), 3 * (5 + 2) * 2 * 6 * 5)


def test_a_cache_in_blocks() -> None:
    """6 tokens are two blocks of 4; a window of 4 begins anywhere in a block of 3."""
    same(kv_cache.layer_cache_bytes(KIND, 6, 5, Cache(block=4)), 3 * 16 * 8 * 5)
    same(kv_cache.layer_cache_bytes(WINDOW, 100, 5, Cache(block=3)), 3 * 16 * (1 + 1) * 3 * 5)
    same(kv_cache.layer_cache_bytes(WINDOW, 5, 5, Cache(block=3)), 3 * 16 * 2 * 3 * 5)


def test_a_cache_of_transformers() -> None:
    """Behind a window of 4 a growing cache keeps 3 tokens, a static one 4; expanded, both heads of
    latent attention have keys of 3 + 2 numbers and values of 4.
    """
    same(kv_cache.layer_cache_bytes(WINDOW, 6, 5, Cache(DYNAMIC)), 3 * 16 * 3 * 5)
    same(kv_cache.layer_cache_bytes(WINDOW, 6, 5, Cache(STATIC)), 3 * 16 * 4 * 5)
    same(kv_cache.layer_cache_bytes(LATENT, 6, 5, Cache(DYNAMIC)), 3 * (5 + 2) * 2 * 6 * 5)
    same(kv_cache.layer_cache_bytes(LATENT, 6, 5, Cache(EXPANDED)), 3 * 2 * (10 + 8) * 6 * 5)


def test_a_quantised_cache() -> None:
    """fp8: a byte a number, two float32 scales for each layer. int4: half a byte, and two 16-bit
    numbers for each head's key and value.
    """
    fp8, int4 = (Cache(kept=cache_format(name)) for name in ("fp8", "int4"))
    same(kv_cache.layer_cache_bytes(KIND, 6, 5, fp8), 3 * (4 + 4) * 6 * 5 + 3 * 8)
    same(kv_cache.layer_cache_bytes(LATENT, 6, 5, fp8), 3 * (5 + 2) * 6 * 5 + 3 * 8)
    same(kv_cache.layer_cache_bytes(KIND, 6, 5, int4), 3 * (6 + 6) * 6 * 5)


def test_weights() -> None:
    """Embedding, head and seven norms stay wide."""
    wide = 2 * (2 * 10 * 8 + 7 * 8)
    same(model_bytes(MODEL, weight_format("bf16")), wide + 2 * 3 * 672)
    rows = 8 + 4 + 4 + 8 + 20 + 20 + 8
    same(model_bytes(MODEL, weight_format("fp8")), wide + 3 * (672 + 2 * rows))

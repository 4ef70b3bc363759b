"""A sum by hand for every closed form of inference, with its arithmetic written out."""

from dataclasses import replace

import pytest

from tests.plan.dimensions import check_units
from tests.plan.parallel.builders import llama
from torchtally.plan import kv_cache
from torchtally.plan.architecture.model import LatentAttention
from torchtally.plan.inference import draft, forward, memory, serving
from torchtally.plan.inference.formats import weight_format
from torchtally.plan.inference.weights import model_bytes
from torchtally.plan.kv_cache import Cache, CacheKind, cache_format
from torchtally.plan.parallel.delays import slow_s
from torchtally.plan.quantity import Quantity
from torchtally.plan.training import cost_usd, energy_joules

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


def assert_same(quantity: Quantity, expected: float) -> None:
    check_units(quantity)
    assert quantity.value == pytest.approx(expected, rel=1e-12)


def test_a_kv_cache() -> None:
    """Five sequences of 6 tokens; a key and a value are one head of 4 numbers of 2 bytes."""
    assert_same(kv_cache.kv_cache_bytes(MODEL, 6, 5), 3 * 1 * (8 + 8) * 6 * 5)
    assert_same(kv_cache.layer_cache_bytes(WINDOW, 6, 5), 3 * 1 * (8 + 8) * 4 * 5)
    assert_same(kv_cache.layer_cache_bytes(LATENT, 6, 5), 3 * (5 + 2) * 2 * 6 * 5)


def test_a_cache_in_blocks() -> None:
    """6 tokens are two blocks of 4; a window of 4 begins anywhere in a block of 3."""
    assert_same(kv_cache.layer_cache_bytes(KIND, 6, 5, Cache(block=4)), 3 * 16 * 8 * 5)
    assert_same(
        kv_cache.layer_cache_bytes(WINDOW, 100, 5, Cache(block=3)), 3 * 16 * (1 + 1) * 3 * 5
    )
    assert_same(kv_cache.layer_cache_bytes(WINDOW, 5, 5, Cache(block=3)), 3 * 16 * 2 * 3 * 5)
    assert_same(kv_cache.wasted_bytes(100, 90), 100 - 90)


def test_a_cache_of_transformers() -> None:
    """Behind a window of 4 a growing cache keeps 3 tokens, a static one 4; expanded, both heads of
    latent attention have keys of 3 + 2 numbers and values of 4.
    """
    assert_same(kv_cache.layer_cache_bytes(WINDOW, 6, 5, Cache(DYNAMIC)), 3 * 16 * 3 * 5)
    assert_same(kv_cache.layer_cache_bytes(WINDOW, 6, 5, Cache(STATIC)), 3 * 16 * 4 * 5)
    assert_same(kv_cache.layer_cache_bytes(LATENT, 6, 5, Cache(DYNAMIC)), 3 * (5 + 2) * 2 * 6 * 5)
    assert_same(kv_cache.layer_cache_bytes(LATENT, 6, 5, Cache(EXPANDED)), 3 * 2 * (10 + 8) * 6 * 5)


def test_a_quantised_cache() -> None:
    """fp8: a byte a number, two float32 scales for each layer. int4: half a byte, and two 16-bit
    numbers for each head's key and value.
    """
    fp8, int4 = (Cache(kept=cache_format(name)) for name in ("fp8", "int4"))
    assert_same(kv_cache.layer_cache_bytes(KIND, 6, 5, fp8), 3 * (4 + 4) * 6 * 5 + 3 * 8)
    assert_same(kv_cache.layer_cache_bytes(LATENT, 6, 5, fp8), 3 * (5 + 2) * 6 * 5 + 3 * 8)
    assert_same(kv_cache.layer_cache_bytes(KIND, 6, 5, int4), 3 * (6 + 6) * 6 * 5)


def test_weights() -> None:
    """Embedding, head and seven norms stay wide."""
    wide = 2 * (2 * 10 * 8 + 7 * 8)
    assert_same(model_bytes(MODEL, weight_format("bf16")), wide + 2 * 3 * 672)
    rows = 8 + 4 + 4 + 8 + 20 + 20 + 8
    assert_same(model_bytes(MODEL, weight_format("fp8")), wide + 3 * (672 + 2 * rows))


def test_parts_of_a_forward_pass() -> None:
    assert_same(forward.layers_s(32, 0.5), 32 * 0.5)
    assert_same(forward.grouped_s(0.5, 0.25), 0.5 / 0.25)
    assert_same(forward.engine_s(32, 0.01, 0.5, 3, 2), 32 * 0.01 + 0.5 + (3 - 2))
    assert_same(forward.engine_s(32, 0.01, 0.5, 2, 3), 32 * 0.01 + 0.5)
    assert_same(forward.sampling_s(600, 100, 0.5), 600 / 100 + 0.5)
    assert_same(forward.cached_attention_s(600, 100, 800, 200, 2, 0.5), 600 / 100 + 2 * 0.5)
    assert_same(forward.cached_attention_s(600, 100, 1800, 200, 2, 0.5), 1800 / 200 + 2 * 0.5)


def test_what_a_chip_holds() -> None:
    """10 tokens: four vectors of the width and two of the inner width; 3 rows of logits."""
    assert_same(
        memory.working_buffer_bytes(10, 8, 20, 3, 100, 2, 4),
        10 * (4 * 8 + 2 * 20) * 2 + 3 * 100 * 4,
    )
    assert_same(memory.usable_bytes(0.9, 101), 90)  # 90.9, rounded down


def test_tokens_per_second() -> None:
    """2 replicas of 3 sequences: 10 tokens of 0.1 s, and 3 prompts of 0.5 s in between."""
    assert_same(serving.steady_tokens_per_s(2, 3, 10, 0.1, 0.5), 2 * 3 * 10 / (10 * 0.1 + 3 * 0.5))
    assert_same(serving.decode_tokens_per_s(2, 3, 0.1), 2 * 3 / 0.1)
    assert_same(serving.prompt_tokens_per_s(2, 100, 0.5), 2 * 100 / 0.5)
    assert_same(serving.each_s(6, 4), 6 / 4)
    assert_same(slow_s(2, 1.3), 2 * 1.3)


def test_money_and_energy_of_tokens() -> None:
    """8 chips at 3.6 dollars an hour are 0.008 dollars a second."""
    a_million = serving.hours_of_tokens(8, 10**6, 1000)
    assert_same(cost_usd(a_million, 3.6), 0.008 / 1000 * 1e6)
    assert_same(energy_joules(serving.hours_of_tokens(8, 1, 1000), 700), 8 * 700 / 1000)


def test_where_decode_turns_compute_bound() -> None:
    """1000 bytes take 10 s; a sequence's 2 * 50 FLOPs take 1 s: at 10 of them."""
    assert_same(serving.balanced_sequences(1000, 100, 50, 100), 10)


def test_speculative_decoding() -> None:
    """Of 2 guesses at one half: a token for sure, another with 1/2, a third with 1/4."""
    assert_same(draft.kept_of_round(0.5, 2), 1 + 1 / 2 + 1 / 4)
    assert_same(draft.round_token_s(2, 0.1, 0.5, 1.75), (2 * 0.1 + 0.5) / 1.75)

"""Every kind of weight counted by hand, on sizes that tell each from the others."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.plan.architecture.model import (
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    Model,
    SelfAttention,
)
from torchtally.plan.architecture.prediction import with_prediction
from torchtally.plan.architecture.weights import Group, Weight, layer_weights, weights_of
from torchtally.plan.mixers.convolution import ShortConvolution

ATTENTION = SelfAttention(heads=6, kv_heads=3, head_dim=5)
PLAIN = FeedForward(width=70, is_gated=False, activation="gelu")
LAYER = Layer(count=2, attention=ATTENTION, feed_forward=PLAIN)
CONVOLUTION = ShortConvolution(width=40, kernel=4, has_bias=True)
RECURRENT = replace(LAYER, attention=None, recurrence=CONVOLUTION)
MODEL = Model(name="it", width=40, vocabulary=100, kinds=(LAYER,), is_tied=True)
EXPERTS = Experts(experts=8, active=2, width=20, is_gated=True, activation="silu")


def total(model: Model) -> int:
    return sum(weight.elements for weight in weights_of(model))


def grown(attention: SelfAttention | None = None, **changes: object) -> int:
    """Elements that a change adds to the model."""
    kind = LAYER if attention is None else replace(LAYER, attention=attention)
    return total(replace(MODEL, kinds=(kind,), **changes)) - total(MODEL)


def of_layer(feed_forward: FeedForward | Experts) -> dict[str, Weight]:
    layer = replace(LAYER, feed_forward=feed_forward)
    return {layer_weight.name: layer_weight for layer_weight in layer_weights(layer, MODEL)}


def test_a_model_by_hand() -> None:
    """Two layers: q 30x40, k and v 15x40, output 40x30, two 70x40, two norms of 40."""
    layer = 30 * 40 + 2 * 15 * 40 + 40 * 30 + 2 * 70 * 40 + 2 * 40
    assert total(MODEL) == 100 * 40 + 2 * layer + 40


def test_a_head_of_its_own() -> None:
    assert grown(is_tied=False) == 100 * 40
    assert grown(has_head_bias=True) == 100


def test_norms() -> None:
    assert grown(norm="layer") == 5 * 40
    assert grown(norm="plain") == -5 * 40
    assert grown(has_final_norm=False) == -40
    assert grown(has_embedding_norm=True) == 40
    assert grown(has_embedding_norm=True, norm="layer") == 5 * 40 + 2 * 40


def test_positions_and_narrow_embeddings() -> None:
    assert grown(positions=64) == 64 * 40
    narrow = grown(embedding_width=16)
    assert narrow == 100 * 16 + 2 * 16 * 40 - 100 * 40


def test_attention() -> None:
    assert grown(replace(ATTENTION, has_bias=True)) == 2 * (30 + 15 + 15)
    assert grown(replace(ATTENTION, has_output_bias=True)) == 2 * 40
    assert grown(replace(ATTENTION, is_fused=True)) == 0
    assert grown(replace(ATTENTION, is_fused=True, has_bias=True)) == 2 * 60
    assert grown(replace(ATTENTION, head_norm_sizes=(5, 5))) == 2 * 10
    assert grown(replace(ATTENTION, head_norm_sizes=(5,), has_head_norm_bias=True)) == 2 * 10
    assert grown(replace(ATTENTION, sinks=6)) == 2 * 6
    assert grown(replace(ATTENTION, has_relative_positions=True)) == 2 * 30 * 40
    assert grown(replace(ATTENTION, window=8, is_chunked=True, is_rotary=False)) == 0


@pytest.mark.parametrize(("rank", "queries"), [(None, 60 * 40), (12, 12 * 40 + 12 + 60 * 12)])
def test_latent_attention(rank: int | None, queries: int) -> None:
    """Six heads: 7 plain and 3 rotary dims of queries and keys, 9 of values; keys of rank 16."""
    latent = LatentAttention(
        heads=6, query_rank=rank, kv_rank=16, plain_head_dim=7, rotary_head_dim=3, value_head_dim=9
    )
    layer = replace(LAYER, attention=latent)
    attention = sum(
        layer_weight.elements
        for layer_weight in layer_weights(layer, MODEL)
        if layer_weight.group is Group.ATTENTION or layer_weight.name in ("q norm", "kv norm")
    )
    keys = (16 + 3) * 40 + 16 + 6 * (7 + 9) * 16
    assert attention == 2 * (queries + keys + 40 * 54)


def test_a_gate_is_one_more_matrix_fused_or_not() -> None:
    gated = FeedForward(width=70, is_gated=True, activation="silu", has_bias=True)
    apart, fused = of_layer(gated), of_layer(replace(gated, is_fused=True))
    assert apart["gate"].shape == apart["up"].shape == (70, 40)
    assert fused["gate and up"].shape == (140, 40)
    assert fused["gate and up bias"].shape == (140,)
    assert sum(weight.elements for weight in apart.values()) == sum(
        weight.elements for weight in fused.values()
    )


def test_a_mixture() -> None:
    """Eight experts of 3 * 20 * 40, a router of 8 x 40, something shared, and its gate."""
    layer = of_layer(
        replace(EXPERTS, shared_width=30, has_shared_gate=True, has_bias=True, has_router_bias=True)
    )
    assert layer["experts in"].shape == (8, 40, 40)
    assert layer["experts out"].shape == (8, 40, 20)
    assert layer["experts in bias"].shape == (8, 40)
    assert layer["router"].shape == (8, 40)
    assert layer["router bias"].shape == (8,)
    assert layer["gate"].shape == (30, 40)
    assert layer["shared gate"].shape == (1, 40)
    assert "gate bias" not in layer
    assert "gate bias" in of_layer(replace(EXPERTS, shared_width=30, has_shared_bias=True))


def test_a_token_meets_its_experts_and_all_the_rest() -> None:
    layer = of_layer(EXPERTS)
    assert layer["experts in"].uses == Fraction(1, 4)
    assert layer["experts in"].active_elements == 2 * 2 * 40 * 40
    assert layer["router"].uses == 1
    assert layer["norms"].uses == 0


def test_a_tied_embedding_is_met_as_the_head() -> None:
    tied, apart = weights_of(MODEL), weights_of(replace(MODEL, is_tied=False))
    assert [weight.uses for weight in tied if weight.name == "embedding"] == [1]
    assert [weight.uses for weight in apart if weight.name in ("embedding", "head")] == [0, 1]


@given(st.integers(1, 9), st.integers(1, 9))
def test_layers_add(one: int, two: int) -> None:
    """So many of one kind are so many times one, whether listed together or apart."""
    apart = replace(MODEL, kinds=(replace(LAYER, count=one), replace(LAYER, count=two)))
    assert total(apart) == total(replace(MODEL, kinds=(replace(LAYER, count=one + two),)))
    assert apart.layers == one + two


def test_every_weight_is_there() -> None:
    everything = replace(
        MODEL, kinds=(LAYER, replace(LAYER, feed_forward=EXPERTS), RECURRENT), is_tied=False,
        norm="layer", positions=3, has_head_bias=True,
    )  # fmt: skip
    everything = with_prediction(everything, 1)
    for weight in weights_of(everything):
        assert weight.elements > 0
        assert 0 <= weight.uses <= 1
    assert {weight.group for weight in weights_of(everything)} == set(Group)

"""What one chip holds of the weights."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.parallel.builders import llama, mixture
from torchtally.plan.architecture.known import known_models
from torchtally.plan.architecture.weights import Group, weights_of
from torchtally.plan.parallel import shards
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.shards import (
    WeightSplit,
    chip_weights,
    elements,
    layer_on_chip,
    on_chip,
    rows_of,
)

WHOLE = frozenset(
    ("q down", "kv down", "mixer decay down", "mixer gate down", "router", "shared gate",
     "embedding to layers", "layers to head")
)  # fmt: skip
"""Matrices that every chip holds: what compresses, and what chooses experts."""


def count(model: object, **split: int) -> int:
    shares = chip_weights(model, Layout(**split))  # type: ignore[arg-type]
    return sum(
        elements(each, of_experts=of_experts)
        for each in (shares.layers, shares.embedding, shares.head)
        for of_experts in (False, True)
    )


def test_one_chip_holds_all() -> None:
    for model in (llama(), mixture(), llama(is_tied=True)):
        assert count(model) == sum(weight.elements for weight in weights_of(model))


def test_tensor_parallelism_splits_all_but_norms() -> None:
    model = llama(width=64, layers=1, heads=4, ffn=128, vocabulary=1000)
    norms = 3 * 64
    matrices = 4 * 64 * 64 + 3 * 64 * 128 + 2 * 64 * 1000
    assert count(model, tensor=4) == matrices // 4 + norms


def test_a_vocabulary_is_padded() -> None:
    weight = next(weight for weight in weights_of(llama(vocabulary=1001)) if weight.name == "head")
    assert on_chip(weight, WeightSplit(4, 1, 4)).shape == (251, 1024)


def test_experts_are_split_twice() -> None:
    weight = next(weight for weight in weights_of(mixture()) if weight.name == "experts in")
    assert weight.shape == (8, 4096, 1024)
    assert on_chip(weight, WeightSplit(2, 4, 2)).shape == (2, 2048, 1024)


def test_experts_over_chips_of_tensor_parallelism_are_whole() -> None:
    """8 experts over 2 x 4 chips: one each, as wide as it is; attention is split by 4 all the same.

    Of 6,000 tokens of two replicas an expert gets a fourth, whatever it is split by.
    """
    across = Layout(data=2, tensor=4, is_sequence_parallel=True, expert=8, expert_tensor=1)
    split = WeightSplit.of(across)
    by_name = {weight.name: weight for weight in weights_of(mixture())}
    assert on_chip(by_name["experts in"], split).shape == (1, 4096, 1024)
    assert on_chip(by_name["experts out"], split).shape == (1, 1024, 2048)
    assert on_chip(by_name["q"], split).shape == (256, 1024)
    model = mixture(active=2)
    kind = model.kinds[0]
    (experts,) = [w for w in layer_on_chip(kind, model, across) if w.name == "experts in"]
    assert rows_of(experts, kind, 3000, across) == 2 * 3000 // 4
    assert (across.expert_chips, across.expert_replicas, across.expert_shards) == (8, 1, 1)


def test_a_tied_embedding_is_on_both_ends_of_a_pipeline() -> None:
    model = llama(is_tied=True)
    assert [weight.name for weight in chip_weights(model, Layout(pipeline=2)).head] == [
        "final norm",
        "embedding",
    ]
    assert [weight.name for weight in chip_weights(model, Layout()).head] == ["final norm"]


def known() -> list[str]:
    return [model.name for model in known_models()]


@pytest.mark.parametrize("row", known_models(), ids=known())
def test_every_matrix_of_every_known_model_has_a_rule(row: object) -> None:
    model = row.model()  # type: ignore[attr-defined]
    for weight in weights_of(model):
        if weight.uses and weight.group is not Group.EXPERTS:
            assert weight.name in shards.BY_OUTPUTS | shards.BY_INPUTS | WHOLE, weight.name


def test_a_matrix_without_a_rule_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "BY_INPUTS", frozenset())
    with pytest.raises(AssertionError):
        test_every_matrix_of_every_known_model_has_a_rule(known_models()[0])


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2]))
def test_more_chips_never_hold_more_each(a: int, b: int, pipeline: int) -> None:
    few, many = sorted((a, b))
    for model in (llama(), mixture()):
        assert count(model, tensor=many, pipeline=pipeline) <= count(
            model, tensor=few, pipeline=pipeline
        )

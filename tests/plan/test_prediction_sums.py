"""Multi-token prediction by hand: every sum with its arithmetic written out."""

from dataclasses import replace

import pytest

from torchtally.chips import cluster as chips
from torchtally.errors import UsageError
from torchtally.plan.activations.kept import head_activation_bytes, layer_activation_bytes
from torchtally.plan.activations.setting import Implementation, setting_of
from torchtally.plan.architecture.model import Model
from torchtally.plan.architecture.prediction import with_prediction
from torchtally.plan.architecture.shapes import by_hand
from torchtally.plan.flops import token_flops
from torchtally.plan.frameworks import megatron
from torchtally.plan.kv_cache import kv_cache_bytes
from torchtally.plan.optimizers import optimizer
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.shards import chip_weights
from torchtally.plan.parallel.step import Workload
from torchtally.plan.parallel.traffic import outer_tensor_traffic, tensor_traffic
from torchtally.plan.parallel.volume import sent_bytes
from torchtally.plan.parameters import parameters
from torchtally.plan.recipes import recipe


def small() -> Model:
    """Four layers of width 4, two heads of 2, feed-forward of 16, vocabulary 10, one module."""
    return with_prediction(plain(), 1)


def plain() -> Model:
    return by_hand(layers=4, width=4, heads=2, vocabulary=10, is_tied=False)


def workload() -> Workload:
    return Workload(
        model=small(), cluster=chips("2xH100-SXM"), sequence=8, recipe=recipe("bf16"),
        optimizer=optimizer("adamw"),
    )  # fmt: skip


def test_a_module_by_hand() -> None:
    """Its layer as any other: 4 * 16 of attention, 2 * 4 * 16, norms 2 * 4. Before it a product of
    4 * 8 and two norms, behind it one: 12. Two heads of 4 * 10 for each token.
    """
    model = small()
    layer = 4 * 16 + 2 * 64
    assert parameters(model).total.value == 2 * 40 + 4 + 5 * (layer + 8) + 32 + 12
    scores = 2 * 5 * 2 * (2 + 2) * 3
    assert token_flops(model, 3).forward.value == 2 * (5 * layer + 32) + scores + 2 * 2 * 40


def test_a_last_stage_has_the_embedding_too() -> None:
    """In which prediction looks tokens up: 40 numbers beside the head's 40 and its norm's 4."""
    layout = Layout(pipeline=2)
    with_modules = chip_weights(small(), layout)
    assert sum(weight.elements for weight in with_modules.head) == 40 + 40 + 4
    assert with_modules.depth == 5


def test_three_gathers_where_a_sum_is_two() -> None:
    """Of 2 x 8 tokens, 4 wide, in 2 bytes: a sum over two chips sends as much as each has."""
    cluster, layout = chips("2xH100-SXM"), Layout(tensor=2, micro_batch=2)
    model = small()
    plain, predicting = (
        tensor_traffic(kind, model, layout, 8, recipe("bf16"), cluster).sent.value
        for kind in model.kinds
    )
    assert plain == 2 * 128
    assert predicting == plain + 192
    ends = outer_tensor_traffic(model, layout, 8, recipe("bf16"), cluster).sent.value
    assert ends == 2 * 2 * 128


def test_megatron_is_told_where_it_is() -> None:
    """5 layers on 2 stages are 3 and 2, the module the last of them."""
    lines = megatron.config_text(Layout(pipeline=2), workload()).splitlines()
    assert "--mtp-num-layers 1" in lines
    assert "--pipeline-model-parallel-layout Et*3|t*1mL" in lines
    with pytest.raises(UsageError, match="give fewer stages"):
        megatron.config_text(
            Layout(pipeline=4), replace(workload(), model=with_prediction(plain(), 2))
        )


def test_a_last_stage_sends_for_both_losses() -> None:
    """Of 2 x 8 tokens, 4 wide, in 2 bytes, 128: two heads and two embeddings, forward or backward.
    On the last of two stages an embedding less, and half of 3 layers and the module.
    """
    three = with_prediction(by_hand(layers=3, width=4, heads=2, vocabulary=10, is_tied=False), 1)
    one, two = (
        sent_bytes(
            replace(workload(), model=three, cluster=chips(f"{2 * stages}xH100-SXM")),
            Layout(tensor=2, micro_batch=2, pipeline=stages),
        )["tensor"].value
        for stages in (1, 2)
    )
    layers = 2 * (4 * 256 + 192)
    assert one == layers + 4 * 128
    assert two == layers / 2 + 3 * 128


def test_what_joins_is_kept_and_both_losses() -> None:
    """Of 3 tokens in fused kernels: ids of 8 bytes, an embedding of 4 numbers of 2 bytes, and both
    inputs together, 8 numbers. The state is kept before.
    """
    at = setting_of(small(), 1, 3, recipe("bf16"), implementation=Implementation.FUSED)
    layer, module = (layer_activation_bytes(at, kind).value for kind in at.model.kinds)
    assert module - layer == 3 * (8 + 4 * 2 + 8 * 2)
    once = head_activation_bytes(replace(at, model=plain())).value
    assert head_activation_bytes(at).value == 2 * once


def test_a_module_has_a_cache_of_its_own() -> None:
    """A key and a value of 4 numbers for each of 3 tokens, in 2 bytes."""
    assert kv_cache_bytes(small(), 3).value == 5 * 3 * 2 * 4 * 2

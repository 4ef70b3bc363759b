"""What one chip sends, by hand."""

from dataclasses import replace

import pytest

from tests.plan.parallel.builders import llama, mixture
from torchtally.chips.clusters import cluster
from torchtally.plan.activations.setting import Implementation
from torchtally.plan.parallel.communication import all_to_all
from torchtally.plan.parallel.layout import Layout, Sharding
from torchtally.plan.parallel.traffic import (
    context_traffic,
    context_traffic_backward,
    expert_traffic,
    gather_traffic,
    gradient_traffic,
    groups,
    pipeline_traffic,
    tensor_traffic,
)
from torchtally.plan.recipes import recipe
from torchtally.timing.network import RankGroup

NET = cluster("64xH100-SXM")
MIXED = recipe("mixed")
MODEL = llama(kv_heads=2)
KIND = MODEL.kinds[0]
TOKENS_BYTES = 2 * 1024 * 2048
"""2048 tokens, 1024 wide, in bfloat16."""


@pytest.mark.parametrize("is_sequence_parallel", [False, True])
def test_tensor_parallelism_sends_two_all_reduces_forward(is_sequence_parallel: bool) -> None:
    """Narayanan et al. 2021, section 3.2: 8 b s h (t - 1) / t elements, forward and backward."""
    layout = Layout(tensor=4, is_sequence_parallel=is_sequence_parallel, micro_batch=3)
    traffic = tensor_traffic(KIND, MODEL, layout, 2048, MIXED, NET)
    assert traffic.sent.value == 4 * 3 * TOKENS_BYTES * 3 // 4


def test_what_products_in_8_bits_are_given_is_gathered_in_them() -> None:
    """The sum is scattered in 16 bits: three quarters of the bytes."""
    layout = Layout(tensor=4, is_sequence_parallel=True, micro_batch=3)
    traffic = tensor_traffic(KIND, MODEL, layout, 2048, recipe("fp8"), NET)
    assert traffic.sent.value == 3 * 3 * TOKENS_BYTES * 3 // 4


def test_fused_dispatch_sends_a_token_to_a_node_once() -> None:
    """Six tokens, each to two of experts on two nodes: both on one in half of all cases, so 1.5
    copies between the nodes where there were 2; all 2 go on within a node of 8.
    """
    model = mixture(experts=16, active=2)
    eager = Layout(data=16, expert=16)
    fused = replace(eager, implementation=Implementation.FUSED)
    two_nodes = cluster("16xH100-SXM")
    kinds = (model.kinds[0], model)
    plain, once = (expert_traffic(*kinds, layout, 6, MIXED, two_nodes) for layout in (eager, fused))
    token_bytes = 6 * 1024 * 2
    assert plain.sent.value == pytest.approx(2 * 15 / 16 * 2 * token_bytes, rel=1e-6)
    routed = 2 * token_bytes
    slower_s = max(
        all_to_all(0.75 * routed, RankGroup(16, 2), two_nodes).seconds.value,
        all_to_all(routed, RankGroup(8), two_nodes).seconds.value,
    )
    assert once.seconds.value == pytest.approx(2 * slower_s)
    assert once.sent.value == pytest.approx(2 * (15 / 16 * 1.5 + 7 / 8 * 2) * token_bytes, rel=1e-6)


def test_a_mixture_gathers_its_tokens_for_each_expert() -> None:
    plain, routed = (
        tensor_traffic(
            model.kinds[0], model, Layout(tensor=4, is_sequence_parallel=True), 2048, MIXED, NET
        ).sent.value
        for model in (llama(), mixture(active=3))
    )
    assert routed == 2 * plain


def test_experts_over_tensor_parallelism_are_sent_parts_and_gather_nothing() -> None:
    """8 experts on 2 x 4 chips: each sends its fourth of the tokens to two of them, and back;
    tensor parallelism gathers and scatters around attention alone. Two chips to an expert gather
    half.
    """
    model = mixture(active=2)
    across = Layout(data=2, tensor=4, is_sequence_parallel=True, expert=8, expert_tensor=1)
    common = (model.kinds[0], model)
    rest = (2048, MIXED, NET)
    assert expert_traffic(*common, across, *rest).sent.value == 2 * (2 * TOKENS_BYTES / 4) * 7 / 8
    once = 2 * TOKENS_BYTES * 3 / 4
    assert tensor_traffic(*common, across, *rest).sent.value == once
    halves = replace(across, expert=4, expert_tensor=2)
    gathered = 2 * (2 * TOKENS_BYTES * 2 / 4) / 2
    assert tensor_traffic(*common, halves, *rest).sent.value == once + gathered
    assert expert_traffic(*common, halves, *rest).sent.value == 2 * (2 * TOKENS_BYTES / 4) * 3 / 4


def test_gradients_of_experts_are_summed_by_those_who_have_them() -> None:
    """16 chips: 8 experts over 4 x 2 of them, so two have each; other weights' are on four."""
    layout = Layout(data=4, tensor=4, is_sequence_parallel=True, expert=8, expert_tensor=1)
    experts, others = (
        gradient_traffic(10**9, layout, MIXED, NET, of_experts=of_experts).sent.value
        for of_experts in (True, False)
    )
    assert experts == 2 * 10**9 * 2 * 1 // 2
    assert others == 2 * 10**9 * 2 * 3 // 4
    among = groups(layout, cluster("2x8xH100-SXM"))
    assert among.expert == RankGroup(8, 1)
    assert among.expert_replicas == RankGroup(2, 2)


def test_keys_and_values_go_round() -> None:
    """3 of 4 blocks of 512 tokens, 2 heads of 128 for keys and for values."""
    block = 512 * 2 * 2 * 128 * 2
    traffic = context_traffic(KIND, MODEL, Layout(context=4), 2048, MIXED, NET)
    assert traffic.sent.value == 3 * block


def test_their_gradients_go_one_hop_further_home() -> None:
    block = 512 * 2 * 2 * 128 * 2
    traffic = context_traffic_backward(KIND, MODEL, Layout(context=4), 2048, MIXED, NET)
    assert traffic.sent.value == 3 * block + 4 * block
    assert context_traffic_backward(KIND, MODEL, Layout(), 2048, MIXED, NET).sent.value == 0


def test_tokens_go_to_their_experts_and_back() -> None:
    model = mixture(active=2)
    traffic = expert_traffic(model.kinds[0], model, Layout(data=8, expert=4), 2048, MIXED, NET)
    assert traffic.sent.value == 2 * 2 * TOKENS_BYTES * 3 // 4
    dense = expert_traffic(KIND, MODEL, Layout(data=8), 2048, MIXED, NET)
    assert dense.sent.value == 0


def test_a_stage_passes_on_its_tokens_in_parts() -> None:
    traffic = pipeline_traffic(MODEL, Layout(pipeline=2, tensor=4), 2048, MIXED, NET)
    assert traffic.sent.value == TOKENS_BYTES // 4
    assert pipeline_traffic(MODEL, Layout(), 2048, MIXED, NET).sent.value == 0


def test_gradients_are_all_reduced_or_scattered() -> None:
    """A billion parameters among 8: twice 7/8 of 2 GB, or once."""
    whole = gradient_traffic(10**9, Layout(data=8), MIXED, NET, of_experts=False)
    assert whole.sent.value == 2 * 2 * 10**9 * 7 // 8
    shared = Layout(data=8, shard=Sharding.ZERO2)
    assert gradient_traffic(10**9, shared, MIXED, NET, of_experts=False).sent.value == (
        2 * 10**9 * 7 // 8
    )
    assert gather_traffic(10**9, shared, MIXED, NET, of_experts=False).sent.value == (
        2 * 10**9 * 7 // 8
    )
    assert gather_traffic(10**9, Layout(data=8), MIXED, NET, of_experts=False).sent.value == 0


def test_groups_reduce_their_shares_across() -> None:
    """HSDP, 64 chips in groups of 8: scatter 7/8 in the group, then an eighth among 8 groups."""
    layout = Layout(data=64, shard=Sharding.ZERO3, shard_group=8)
    traffic = gradient_traffic(10**9, layout, MIXED, NET, of_experts=False)
    size = 2 * 10**9
    assert traffic.sent.value == pytest.approx(size * 7 / 8 + 2 * 7 / 8 * size / 8)


def test_autocast_gathers_its_weights_in_16_bits() -> None:
    layout = Layout(data=8, shard=Sharding.ZERO3)
    traffic = gather_traffic(8 * 10**9, layout, recipe("amp"), NET, of_experts=False)
    assert traffic.sent.value == 2 * 7 * 10**9


def test_who_stands_where() -> None:
    """Tensor-parallel chips are neighbours; 8 of them fill a node of the data-parallel ring."""
    axes = groups(Layout(data=4, tensor=8, pipeline=2), NET)
    assert axes.tensor == RankGroup(8)
    assert axes.replicas == RankGroup(4, 4)
    assert axes.stages_cross_nodes
    near = groups(Layout(data=8, tensor=2, context=2, pipeline=2), NET)
    assert near.context == RankGroup(2)
    assert near.replicas == RankGroup(16, 4)
    assert not groups(Layout(pipeline=8), NET).stages_cross_nodes

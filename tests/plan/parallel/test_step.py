"""A whole step: its parts, its memory, its laws, and that its formulas' units are right."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.dimensions import check_units
from tests.plan.parallel.builders import faster, llama, mixture, workload
from torchtally.chips.clusters import cluster
from torchtally.plan.activations.setting import AttentionKernel, Implementation
from torchtally.plan.architecture.known import known_model
from torchtally.plan.flops import Recompute
from torchtally.plan.parallel.degrees import DEGREES
from torchtally.plan.parallel.layout import Layout, Schedule, Sharding
from torchtally.plan.parallel.overlap import overlap_of
from torchtally.plan.parallel.pricing import Pricing, step
from torchtally.plan.parallel.step import Workload
from torchtally.plan.recipes import RECIPES

PARTS = ("compute", "tensor", "context", "expert", "pipeline", "bubble", "data", "optimizer")


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Of 16 chips in two nodes."""
    tensor = draw(st.sampled_from([1, 2, 4]))
    pipeline = draw(st.sampled_from([1, 2, 4]))
    context = draw(st.sampled_from([1, 2]))
    data = 16 // tensor // pipeline // context if tensor * pipeline * context <= 16 else 1
    schedule = draw(st.sampled_from(list(Schedule))) if pipeline > 1 else Schedule.ONE_F_ONE_B
    shard = draw(st.sampled_from(list(Sharding)))
    kernel = draw(st.sampled_from(list(AttentionKernel)))
    is_fused = kernel is not AttentionKernel.MATH
    recomputes = [how for how in Recompute if is_fused or how is not Recompute.OPERATORS]
    return Layout(
        data=data,
        tensor=tensor,
        is_sequence_parallel=draw(st.booleans()),
        pipeline=pipeline,
        context=context,
        schedule=schedule,
        virtual_stages=2 if schedule is Schedule.INTERLEAVED else 1,
        shard=shard,
        shard_group=draw(st.sampled_from([None, 1])) if shard is not Sharding.NONE else None,
        micro_batch=draw(st.sampled_from([1, 2])),
        micro_batches=draw(st.sampled_from([1, 4, 8])),
        recompute=draw(st.sampled_from(recomputes)),
        kernel=kernel,
        implementation=draw(st.sampled_from(list(Implementation))),
    )


WORKLOADS = st.sampled_from(
    [
        workload(chips="16xH100-SXM"),
        workload(mixture(), "16xA100-SXM"),
        workload(llama(is_tied=True), "16xB200", sequence=512),
    ]
)


@given(WORKLOADS, layouts())
def test_parts_sum_to_the_step_and_every_unit_is_right(degrees: Workload, layout: Layout) -> None:
    priced_step = step(degrees, layout)
    assert math.fsum(priced_step.parts[word].value for word in PARTS) == pytest.approx(
        priced_step.seconds.value, rel=1e-12
    )
    for quantity in priced_step.working():
        assert 0 <= quantity.value < math.inf
    for quantity in (
        priced_step.tokens_per_s,
        priced_step.memory.total,
        priced_step.mfu,
        priced_step.hfu,
    ):
        check_units(quantity)
    assert 0 < priced_step.mfu.value <= priced_step.hfu.value
    assert priced_step.parts.streaming.value <= priced_step.parts["compute"].value


@given(WORKLOADS, layouts())
def test_what_a_search_adds_up_is_the_step(degrees: Workload, layout: Layout) -> None:
    pricing = Pricing(degrees)
    priced_step = pricing.step(layout)
    assert pricing.step_s(layout) == pytest.approx(priced_step.seconds.value, rel=1e-12)
    beside, held = pricing.beside_bytes(layout), pricing.states_bytes(layout)
    assert max(map(sum, zip(beside, held, strict=True))) == priced_step.memory.total.value
    assert pricing.least_s(layout) <= priced_step.seconds.value * (1 + 1e-12)


@given(layouts(), st.floats(1.0, 100.0))
def test_a_faster_network_is_never_slower(layout: Layout, times: float) -> None:
    """Between nodes. Within one NCCL goes from one protocol to the next where its table says so."""
    slow = workload(chips="16xH100-SXM")
    fast = replace(slow, cluster=faster(slow.cluster, times, in_node=False))
    assert step(fast, layout).seconds.value <= step(slow, layout).seconds.value * (1 + 1e-9)


@given(layouts(), st.floats(0, 1), st.floats(0, 1))
def test_more_overlap_is_never_slower(layout: Layout, a: float, b: float) -> None:
    little, much = sorted((a, b))
    seconds = [
        step(
            workload(
                chips="16xH100-SXM",
                overlap=overlap_of(
                    tensor=degree, context=degree, expert=degree, pipeline=degree, data=degree
                ),
            ),
            layout,
        ).seconds.value
        for degree in (little, much)
    ]
    assert seconds[1] <= seconds[0] * (1 + 1e-9)


@pytest.mark.parametrize("model", [llama(), mixture()], ids=["dense", "mixture"])
def test_one_chip_sends_nothing_and_waits_for_nobody(model: Any) -> None:
    priced_step = step(workload(model, "H100-SXM"), Layout(micro_batches=4))
    for word in ("tensor", "context", "expert", "pipeline", "bubble", "data"):
        assert priced_step.parts[word].value == 0, word
    assert priced_step.bound in ("compute", "memory bandwidth", "optimizer")


def test_micro_batches_take_turns() -> None:
    one, four = (
        step(workload(chips="H100-SXM"), Layout(micro_batches=number)) for number in (2, 8)
    )
    assert four.parts["compute"].value == pytest.approx(4 * one.parts["compute"].value)
    assert four.parts["optimizer"].value == one.parts["optimizer"].value


def test_tokens_and_mfu_by_hand() -> None:
    layout = Layout(data=8, micro_batch=2, micro_batches=3)
    priced_step = step(workload(), layout)
    assert priced_step.tokens.value == 8 * 2 * 3 * 2048
    flops = dict(priced_step.mfu.terms)["flops_per_token"].value
    speed = priced_step.tokens.value / priced_step.seconds.value
    assert priced_step.mfu.value == pytest.approx(speed * flops / 8 / 989.4e12)


def test_the_bubble_is_that_of_the_layers() -> None:
    job = workload(chips="4xH100-SXM")
    layout = Layout(pipeline=4, micro_batches=16)
    parts = step(job, layout).parts
    per_micro_batch = (parts["compute"].value - 16 * Pricing(job)._stage(layout).ends.value) / 16
    assert parts["bubble"].value == pytest.approx(3 * per_micro_batch)


def test_a_head_takes_the_place_of_a_layer_where_layers_do_not_divide() -> None:
    """Seven over four stages: two on each but the last, which has one and the head."""
    even, uneven = (Pricing(workload(llama(layers=layers), sequence=1024)) for layers in (8, 7))
    layout = Layout(pipeline=4, micro_batches=8)
    stages = [pricing._stage(layout) for pricing in (even, uneven)]
    layer_s = uneven.layers_s(layout) / 7
    assert stages[0].forward.value == pytest.approx(stages[1].forward.value)
    assert stages[0].ends.value > 0
    assert stages[1].ends.value == pytest.approx(max(0, stages[0].ends.value - layer_s))


def test_full_recomputation_does_the_layers_forward_again() -> None:
    plain, again = (
        step(workload(chips="H100-SXM"), Layout(recompute=recompute))
        for recompute in (Recompute.NONE, Recompute.FULL)
    )
    stage = Pricing(workload(chips="H100-SXM"))._stage(Layout())
    more = again.parts["compute"].value - plain.parts["compute"].value
    assert more == pytest.approx(stage.forward.value)
    assert again.memory.activations.value < plain.memory.activations.value
    assert again.mfu.value < again.hfu.value


def test_shared_parameters_are_fetched_for_every_micro_batch() -> None:
    job = workload(overlap=overlap_of(data=0.0))
    one, four = (
        step(job, Layout(data=8, shard=Sharding.ZERO3, micro_batches=m)).parts["data"].value
        for m in (1, 4)
    )
    assert four == pytest.approx(4 * one)
    plain = [step(job, Layout(data=8, micro_batches=m)).parts["data"].value for m in (1, 4)]
    assert plain[0] == plain[1]


def test_sharing_the_optimizer_sends_no_more_and_sharing_all_half_as_much_again() -> None:
    """ZeRO, arXiv 1910.02054, section 7: 2 Psi for both, and 3 Psi; in bytes of 2."""
    pricing = Pricing(workload())
    plain, one, three = (
        pricing._updates(Layout(data=8, shard=shard))
        for shard in (Sharding.NONE, Sharding.ZERO1, Sharding.ZERO3)
    )
    once = one.gradients.sent.value + one.gathered.sent.value
    assert plain.gradients.sent.value == pytest.approx(once, rel=1e-6)
    all_three = three.gradients.sent.value + 2 * three.gathered.sent.value
    assert all_three == pytest.approx(1.5 * once, rel=1e-6)


def test_what_bounds_a_step_is_said_in_words() -> None:
    slow = faster(cluster("16xH100-SXM"), 1e-3)
    layout = Layout(data=2, tensor=8, is_sequence_parallel=True, micro_batches=4)
    priced_step = step(workload(llama(), cluster=slow), layout)
    assert priced_step.bound == "tensor-parallel network"
    data = step(workload(cluster=slow), Layout(data=16))
    assert data.bound == "data-parallel network"
    bubble = step(workload(chips="8xH100-SXM"), Layout(pipeline=8, micro_batches=1))
    assert bubble.bound == "pipeline bubble"


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_a_step(name: str) -> None:
    priced_step = step(workload(recipe=RECIPES[name]), Layout(data=8, shard=Sharding.ZERO3))
    assert priced_step.seconds.value > 0


@pytest.mark.parametrize("name", ["DeepSeek-V3", "gpt-oss 120B", "Gemma 2 9B", "OPT 350M"])
def test_unusual_models_have_a_step(name: str) -> None:
    model = known_model(name)
    expert = 8 if model.is_mixture else 1
    layout = Layout(
        data=8, shard=Sharding.ZERO3, expert=expert, implementation=Implementation.FUSED
    )
    priced_step = step(workload(model, sequence=4096), layout)
    assert (priced_step.parts["expert"].value > 0) is model.is_mixture
    check_units(priced_step.tokens_per_s)
    check_units(priced_step.memory.total)


def test_the_parts_are_those_of_the_table() -> None:
    priced_step = step(workload(), Layout(data=8))
    assert tuple(priced_step.parts.seconds) == PARTS
    assert set(PARTS) == {degree.name for degree in DEGREES} | {"compute", "bubble", "optimizer"}

"""No plan uses more of its chips than they have: MFU and HFU of random models and layouts.

`TALLY_EXAMPLES=10000` tries as many.
"""

from dataclasses import replace
from typing import cast

import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st

from tests.plan.parallel.builders import llama, workload
from torchtally.chips import known_chips
from torchtally.chips.clusters import Cluster
from torchtally.errors import UsageError
from torchtally.plan.activations.setting import AttentionKernel, Implementation
from torchtally.plan.architecture.model import (
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    Model,
    SelfAttention,
)
from torchtally.plan.flops import Recompute
from torchtally.plan.optimizers import optimizer
from torchtally.plan.parallel.degrees import invalidities
from torchtally.plan.parallel.layout import Layout, Schedule, Sharding
from torchtally.plan.parallel.pricing import Pricing, step
from torchtally.plan.parallel.step import Workload
from torchtally.plan.recipes import RECIPES
from torchtally.work.convention import Convention

CHIPS = known_chips()
DEGREES = st.sampled_from([1, 1, 2, 4])
SEQUENCES = st.sampled_from([64, 512, 2048, 8192, 65536, 1048576])
REACH = st.sampled_from([None, 1, 128, 1000, 4096, 8192])
"""Of a window, or of a chunk."""


@st.composite
def attentions(draw: st.DrawFn) -> SelfAttention | LatentAttention:
    heads = draw(st.sampled_from([4, 8, 16, 32]))
    if draw(st.integers(0, 4)) == 0:
        return LatentAttention(
            heads=heads, query_rank=draw(st.sampled_from([None, 256, 1536])), kv_rank=512,
            plain_head_dim=128, rotary_head_dim=64, value_head_dim=128,
        )  # fmt: skip
    head_dim = draw(st.sampled_from([32, 64, 80, 128, 256]))
    window = draw(REACH)
    return SelfAttention(
        heads=heads,
        kv_heads=draw(st.sampled_from([heads, heads // 2, heads // 4])),
        head_dim=head_dim,
        window=window,
        is_chunked=window is not None and draw(st.booleans()),
        head_norm_sizes=(head_dim, head_dim) if draw(st.booleans()) else (),
        is_fused=draw(st.booleans()),
    )


@st.composite
def feed_forwards(draw: st.DrawFn) -> FeedForward | Experts:
    width = draw(st.sampled_from([256, 2048, 14336]))
    plain = FeedForward(width=width, is_gated=draw(st.booleans()), activation="silu")
    if draw(st.booleans()):
        return plain
    experts = draw(st.sampled_from([4, 8, 64]))
    return Experts(
        experts=experts,
        active=draw(st.sampled_from([1, 2, experts])),
        width=width,
        is_gated=plain.is_gated,
        activation="silu",
        shared_width=draw(st.sampled_from([0, width])),
        are_all_run=draw(st.booleans()),
    )


@st.composite
def models(draw: st.DrawFn) -> Model:
    """One or two kinds of layers, four or eight of each."""
    kinds = tuple(
        Layer(
            count=draw(st.sampled_from([4, 8])),
            attention=draw(attentions()),
            feed_forward=draw(feed_forwards()),
        )
        for _ in range(draw(st.integers(1, 2)))
    )
    return replace(
        llama(is_tied=draw(st.booleans()), vocabulary=draw(st.sampled_from([256, 32000, 256000]))),
        width=draw(st.sampled_from([256, 1024, 4096, 16384])),
        kinds=kinds,
        norm=draw(st.sampled_from(["rms", "layer"])),
        dropout=draw(st.sampled_from([0.0, 0.1])),
    )


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    pipeline = draw(DEGREES)
    return Layout(
        data=draw(st.sampled_from([1, 2, 8])),
        shard=draw(st.sampled_from(Sharding)),
        tensor=draw(DEGREES),
        is_sequence_parallel=draw(st.booleans()),
        pipeline=pipeline,
        schedule=draw(st.sampled_from([Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.ZB_H1])),
        context=draw(DEGREES),
        micro_batch=draw(st.sampled_from([1, 2, 16])),
        micro_batches=draw(st.sampled_from([1, 4, 8])),
        recompute=draw(st.sampled_from(Recompute)),
        kernel=draw(st.sampled_from(AttentionKernel)),
        implementation=draw(st.sampled_from(Implementation)),
    )


@st.composite
def plans(draw: st.DrawFn) -> tuple[Workload, Layout]:
    """A workload and a layout that is possible for it, in a precision that the chip has."""
    model, layout, chip = draw(models()), draw(layouts()), draw(st.sampled_from(CHIPS))
    # All in one node where no source says how many a node has.
    cluster = Cluster(chip, layout.chips, None if chip.node else layout.chips)
    recipes = [recipe for recipe in RECIPES.values() if recipe.products in chip.peaks]
    assume(recipes)
    job = workload(
        model,
        cluster=cluster,
        sequence=draw(SEQUENCES),
        recipe=draw(st.sampled_from(recipes)),
        optimizer=optimizer(draw(st.sampled_from(["adamw", "sgd"]))),
        attention=draw(st.sampled_from(Convention)),
    )
    assume(not list(invalidities(layout, model, cluster, sequence=job.sequence)))
    return job, layout


@given(plan=plans())
def test_no_plan_uses_more_than_the_chips_have(plan: tuple[Workload, Layout]) -> None:
    try:
        priced_step = step(*plan)
    except UsageError:  # no source says how fast a link is, or what such a layer keeps
        reject()
    assert 0 < priced_step.mfu.value <= priced_step.hfu.value <= 1


LONG = 1 << 20


def test_attention_in_full_would_be_more_than_the_chip_can_do() -> None:
    """The law is near enough to be broken: a million tokens, half of whose pairs are computed."""
    job = workload(llama(), "1xA100-SXM", sequence=LONG)
    layout = Layout(implementation=Implementation.FUSED)
    in_full = Pricing(job)._step(layout, Convention.FULL)
    assert in_full.mfu.value > 1.05
    by_half = step(job, layout)
    assert by_half.attention is Convention.CAUSAL
    assert 0.5 < by_half.mfu.value < 1
    assert by_half.mfu.name == "MFU, causal by half"


@pytest.mark.parametrize("is_chunked", [False, True])
def test_what_lies_outside_of_a_window_is_in_no_mfu(is_chunked: bool) -> None:
    """Of a million tokens, each attends to 4096: in full it would be 256 times as many."""
    plain = llama()
    (kind,) = plain.kinds
    attention = cast("SelfAttention", kind.attention)
    near = replace(attention, window=4096, is_chunked=is_chunked)
    model = replace(plain, kinds=(replace(kind, attention=near),))
    layout = Layout(implementation=Implementation.FUSED)
    priced_step = step(workload(model, "1xH100-SXM", sequence=LONG), layout)
    assert priced_step.attention is Convention.FULL
    assert 0.3 < priced_step.mfu.value < 0.8

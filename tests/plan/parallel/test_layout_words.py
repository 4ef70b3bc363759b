"""Layouts as people write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.errors import UsageError
from torchtally.plan.flops import Recompute
from torchtally.plan.parallel.degrees import layout_in_short, layout_text
from torchtally.plan.parallel.layout import Layout, Schedule, Sharding
from torchtally.plan.parallel.layout_words import EXAMPLE, parse_layout


def parsed(text: str, chips: int = 64, batch: int | None = None) -> Layout:
    return parse_layout(text, chips, batch, Layout())


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    pipeline = draw(st.sampled_from([1, 2, 8]))
    chunks = draw(st.sampled_from([1, 5])) if pipeline > 1 else 1
    plain = [Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.ZB_H1, Schedule.ZB_H2]
    schedule = Schedule.ONE_F_ONE_B if pipeline == 1 else draw(st.sampled_from(plain))
    shard = draw(st.sampled_from(Sharding))
    tensor = draw(st.sampled_from([1, 2, 8]))
    data, context = draw(st.sampled_from([1, 2, 16])), draw(st.sampled_from([1, 4]))
    expert = draw(st.sampled_from([1, 8]))
    # Where dp and cp are too few for all experts, they are over tp, too.
    across = [1] if data * context % expert else [None, 1]
    return Layout(
        data=data,
        shard=shard,
        shard_group=draw(st.sampled_from([None, 8])) if shard is Sharding.ZERO3 else None,
        tensor=tensor,
        is_sequence_parallel=tensor > 1,
        pipeline=pipeline,
        virtual_stages=chunks,
        schedule=Schedule.INTERLEAVED if chunks > 1 else schedule,
        context=context,
        expert=expert,
        expert_tensor=draw(st.sampled_from(across)) if tensor > 1 else None,
        micro_batch=draw(st.sampled_from([1, 2])),
        micro_batches=draw(st.sampled_from([1, 40])),
        recompute=draw(st.sampled_from([Recompute.NONE, Recompute.FULL])),
    )


@given(layouts())
def test_what_a_table_prints_can_be_read_again(layout: Layout) -> None:
    assert parsed(layout_in_short(layout)) == layout


def test_words_with_commas_spaces_and_long_names() -> None:
    whole = parsed("dp 16 zero-1, tp 2 with sp, pp 2 interleaved x5, micro-batch 1 x8")
    assert whole == parsed("dp16/z1,tp2,pp2x5,mb1x8")
    assert layout_text(whole) == "dp 16 zero-1, tp 2 with sp, pp 2 interleaved x5, micro-batch 1 x8"
    assert parsed("fsdp") == parsed("dp64 zero3")
    assert not parsed("tp 8 no-sp").is_sequence_parallel
    assert parsed("pp 4, zb-h1").schedule is Schedule.ZB_H1


def test_what_is_left_out_follows_from_chips_and_batch() -> None:
    """64 chips over tensor 8 and 2 stages: 4 replicas; 128 sequences in twos: 16 micro-batches."""
    layout = parsed("tp 8, pp 2, mb 2", batch=128)
    assert (layout.data, layout.micro_batch, layout.micro_batches) == (4, 2, 16)


def test_experts_that_dp_and_cp_do_not_hold_are_spread_over_tp() -> None:
    """64 experts' chips of 16 x 8: each expert whole, on two chips. As many as tp is no word."""
    across = parsed("dp16,tp8,pp16,ep64,zero2,mb1x8,1f1b")
    assert (across.expert, across.expert_tensor, across.expert_replicas) == (64, 1, 2)
    assert across == parsed("dp16,tp8,pp16,ep64/etp1,zero2,mb1x8")
    assert parsed("dp16,tp8,ep16").expert_tensor is None
    assert parsed("dp16,tp8,ep16,etp8").expert_tensor is None
    assert parsed("dp16,tp8,ep64,no-sp").expert_tensor is None


def test_the_example_in_messages_is_one() -> None:
    layout = parsed(EXAMPLE)
    assert (layout.data, layout.expert, layout.micro_batches) == (16, 64, 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp16, tpp8", "'tpp8' is unknown"),
        ("tp 4, tp 8", "gives tensor twice"),
        ("zero-1 fsdp", "gives shard twice"),
        ("dp 0", "at least 1"),
        ("tp 8x2", "'tp8x2' is unknown"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parsed(text)

"""What a layout is, and why one cannot be."""

from dataclasses import replace

import pytest

from tests.plan.parallel.builders import llama, mixture
from torchtally.chips.clusters import cluster
from torchtally.plan.flops import Recompute
from torchtally.plan.parallel.degrees import invalidities, layout_in_short, layout_text
from torchtally.plan.parallel.layout import Layout, Schedule, Sharding, spread_over

GOOD = Layout(data=4, tensor=2, is_sequence_parallel=True)


def reasons(layout: Layout, model: object = None, **given: object) -> str:
    reasons_given = invalidities(
        layout,
        model or llama(kv_heads=4),  # type: ignore[arg-type]
        cluster("8xH100-SXM"),
        **({"sequence": 2048} | given),  # type: ignore[arg-type]
    )
    return "; ".join(reasons_given)


def test_degrees_multiply() -> None:
    layout = Layout(data=3, tensor=4, pipeline=5, context=2, micro_batch=7, micro_batches=11)
    assert layout.chips == 120
    assert layout.replicas == layout.shards == 6
    assert layout.global_batch == 231


def test_a_group_that_shares_may_be_smaller_than_all() -> None:
    layout = Layout(data=64, shard=Sharding.ZERO3, shard_group=8, expert=4)
    assert (layout.shards, layout.expert_shards) == (8, 2)


def test_a_good_layout_has_nothing_against_it() -> None:
    assert reasons(GOOD) == ""
    assert reasons(GOOD, global_batch=4) == ""


def test_layers_that_do_not_divide_are_those_of_the_fullest_stage() -> None:
    """61 over 16 stages: four on the fullest, as if they were spread over 15.25."""
    assert spread_over(64, 16) == 16
    assert spread_over(61, 16) == 15.25
    assert 61 / spread_over(61, 16) == 4
    assert spread_over(3, 2) == 1.5


BAD = {
    "chips": (replace(GOOD, data=8), "are 16 chips, not 8"),
    "heads": (Layout(tensor=16), "8 heads do not divide by tp 16"),
    "heads of keys": (Layout(tensor=8), "4 KV heads do not divide by tp 8"),
    "layers": (Layout(pipeline=16), "8 layers are fewer than pp 16"),
    "chunks": (
        Layout(pipeline=4, virtual_stages=4, schedule=Schedule.INTERLEAVED, micro_batches=4),
        "8 layers are fewer than pp 4x4",
    ),
    "a schedule without its chunks": (
        Layout(pipeline=8, schedule=Schedule.INTERLEAVED, micro_batches=8),
        "interleaved with 1 chunks",
    ),
    "micro-batches of an interleaved schedule": (
        Layout(pipeline=4, virtual_stages=2, schedule=Schedule.INTERLEAVED, micro_batches=6),
        "6 micro-batches do not divide by pp 4",
    ),
    "the sequence": (Layout(context=3), "2048 tokens do not divide into 6 pieces"),
    "experts of a dense model": (Layout(data=8, expert=2), "ep 2 needs a mixture of experts"),
    "groups": (
        Layout(data=8, shard=Sharding.ZERO3, shard_group=3),
        "groups of 3 for zero-3 do not divide",
    ),
    "groups without sharing": (Layout(data=8, shard_group=4), "groups of 4 without sharding"),
}


@pytest.mark.parametrize(("layout", "why"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_is_said(layout: Layout, why: str) -> None:
    assert why in reasons(layout)


def test_experts_must_divide() -> None:
    model = mixture(experts=8)
    assert reasons(Layout(data=8, expert=4), model) == ""
    assert "8 experts do not divide by ep 3" in reasons(Layout(data=8, expert=3), model)
    assert "ep 8 does not divide the 4 chips" in reasons(Layout(data=4, tensor=2, expert=8), model)


def test_experts_over_tensor_parallelism_must_divide() -> None:
    model = mixture(experts=8)
    across = Layout(data=2, tensor=4, is_sequence_parallel=True, expert=8, expert_tensor=1)
    assert reasons(across, model) == ""
    assert layout_text(across) == "dp 2, tp 4 with sp, ep 8 etp 1, micro-batch 1 x1"
    assert layout_in_short(across) == "dp2 tp4 ep8/etp1 mb 1x1"
    assert "etp 3 does not divide tp 4" in reasons(replace(across, expert_tensor=3), model)
    plain = replace(across, is_sequence_parallel=False)
    assert "etp 1 below tp 4 needs sp" in reasons(plain, model)
    two = replace(across, expert_tensor=2)
    assert "ep 8 does not divide the 4 chips of dp, cp and tp over etp 2" in reasons(two, model)
    assert "ep 8 needs a mixture" in reasons(across)


def test_a_step_has_as_many_sequences_as_asked() -> None:
    assert "4 x 1 x 1 are 4 sequences, not 6" in reasons(GOOD, global_batch=6)


def test_a_layout_says_what_it_is() -> None:
    layout = Layout(
        data=16, shard=Sharding.ZERO1, tensor=8, is_sequence_parallel=True, pipeline=4,
        schedule=Schedule.INTERLEAVED, virtual_stages=5, micro_batches=32,
        recompute=Recompute.FULL,
    )  # fmt: skip
    assert layout_text(layout) == (
        "dp 16 zero-1, tp 8 with sp, pp 4 interleaved x5, micro-batch 1 x32, recompute full"
    )

"""Bytes on one chip: ZeRO's published table, sums by hand, and laws."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.parallel.builders import bare, llama, mixture, workload
from torchtally.plan.activations.setting import Implementation
from torchtally.plan.flops import Recompute
from torchtally.plan.optimizers import OPTIMIZERS, optimizer
from torchtally.plan.parallel.chip_memory import ChipMemory
from torchtally.plan.parallel.layout import Layout, Schedule, Sharding
from torchtally.plan.parallel.pricing import Pricing, step
from torchtally.plan.parallel.states import ChipStates, chip_states
from torchtally.plan.recipes import recipe

MIXED, ADAMW = recipe("mixed"), optimizer("adamw")

ZERO_TABLE_1 = {
    7_500_000_000: {
        1: (120, 120, 120),
        4: (52.5, 41.3, 30),
        16: (35.6, 21.6, 7.5),
        64: (31.4, 16.6, 1.88),
        256: (30.4, 15.4, 0.47),
        1024: (30.1, 15.1, 0.12),
    },
    128_000_000_000: {
        1: (2048, 2048, 2048),
        4: (896, 704, 512),
        16: (608, 368, 128),
        64: (536, 284, 32),
        256: (518, 263, 8),
        1024: (513, 257, 2),
    },
    1_000_000_000_000: {
        1: (16000, 16000, 16000),
        4: (7000, 5500, 4000),
        16: (4750, 2875, 1000),
        64: (4187, 2218, 250),
        256: (4046, 2054, 62.5),
        1024: (4011, 2013, 15.6),
    },
}
"""ZeRO, arXiv 1910.02054, table 1: parameters, chips, GB with states, gradients, weights shared."""


def held_bytes(states: ChipStates) -> float:
    """Without what is gathered while a layer is at work, which the paper leaves out."""
    return float(states.total.value - states.gathered.value)


@pytest.mark.parametrize("parameters", ZERO_TABLE_1)
@pytest.mark.parametrize("chips", [1, 4, 16, 64, 256, 1024])
def test_zero_table_1(parameters: int, chips: int) -> None:
    for shard, published in zip(
        (Sharding.ZERO1, Sharding.ZERO2, Sharding.ZERO3),
        ZERO_TABLE_1[parameters][chips],
        strict=True,
    ):
        layout = Layout(data=chips, shard=shard)
        states = chip_states(bare(parameters), layout, MIXED, ADAMW, stage=0)
        # Some are rounded and some cut off: to the last printed digit.
        digit = 0.01 if published < 2 else 0.1 if published % 1 else 1
        assert held_bytes(states) / 1e9 == pytest.approx(published, abs=digit)


def test_nothing_shared_is_16_bytes_a_parameter() -> None:
    states = chip_states(bare(10**9), Layout(data=64), MIXED, ADAMW, stage=0)
    assert states.total.value == 16 * 10**9
    assert states.gathered.value == 0


def test_groups_that_share_are_counted_by_their_size() -> None:
    """HSDP: 64 chips in groups of 8 hold what 8 chips hold."""
    whole = chip_states(bare(10**9), Layout(data=8, shard=Sharding.ZERO3), MIXED, ADAMW, stage=0)
    groups = Layout(data=64, shard=Sharding.ZERO3, shard_group=8)
    assert chip_states(bare(10**9), groups, MIXED, ADAMW, stage=0) == whole


def test_experts_are_shared_by_those_who_have_them() -> None:
    """8 chips, 4 of them with other experts: each holds a fourth of them, shared by two."""
    model = mixture(experts=8)
    experts = 8 * 8 * (2 * 2048 + 2048) * 1024
    all_here = chip_states(model, Layout(data=8), MIXED, ADAMW, stage=0)
    fourth = chip_states(model, Layout(data=8, expert=4), MIXED, ADAMW, stage=0)
    assert all_here.parameters.value - fourth.parameters.value == 2 * experts * 3 // 4
    one, shared = (
        chip_states(model, Layout(data=8, expert=4, shard=shard), MIXED, ADAMW, stage=0)
        for shard in (Sharding.NONE, Sharding.ZERO1)
    )
    others = one.parameters.value // 2 - experts // 4
    assert one.master.value == 4 * (others + experts // 4)
    assert shared.master.value == pytest.approx(4 * (others / 8 + experts / 8))


def test_a_pipelines_ends_have_the_embedding_and_the_head() -> None:
    model, layout = llama(layers=8), Layout(pipeline=4, micro_batches=8)
    first, inner, last = (
        chip_states(model, layout, MIXED, ADAMW, stage=stage).parameters.value // 2
        for stage in (0, 1, 3)
    )
    assert first - inner == 32000 * 1024
    assert last - inner == 32000 * 1024 + 1024


def memory(layout: Layout, model: object = None, sequence: int = 2048) -> ChipMemory:
    job = workload(model or llama(), "H100-SXM", sequence=sequence)  # type: ignore[arg-type]
    return Pricing(job).memory(layout)


def test_a_chip_holds_the_sum_of_its_parts() -> None:
    chip_memory = memory(Layout(data=2, tensor=2, pipeline=2, micro_batches=4))
    parts = (
        chip_memory.states.total,
        chip_memory.activations,
        chip_memory.logits,
        chip_memory.outside,
    )
    assert chip_memory.total.value == sum(quantity.value for quantity in parts)
    assert "estimated" in chip_memory.outside.note


def test_activations_of_every_micro_batch_in_flight_are_kept() -> None:
    layout = Layout(pipeline=4, micro_batches=8, implementation=Implementation.FUSED)
    chip_memory = memory(layout, llama(vocabulary=1000))
    alone = memory(Layout(implementation=Implementation.FUSED), llama(vocabulary=1000))
    assert chip_memory.stage == 0
    assert chip_memory.in_flight.value == 4
    assert chip_memory.activations.value == pytest.approx(alone.activations.value, rel=0.02)


def test_gpipe_keeps_all_of_them() -> None:
    degrees = {"pipeline": 4, "micro_batches": 16}
    gpipe, plain = memory(Layout(schedule=Schedule.GPIPE, **degrees)), memory(Layout(**degrees))
    assert gpipe.total.value > plain.total.value


def test_large_logits_make_the_last_stage_the_fullest() -> None:
    layout = Layout(pipeline=2, micro_batches=2, recompute=Recompute.FULL)
    chip_memory = memory(layout, llama(width=256, layers=2, vocabulary=256000))
    assert chip_memory.stage == 1


shards = st.sampled_from(list(Sharding))


@given(shards, shards, st.sampled_from([2, 8, 64]), st.sampled_from(list(OPTIMIZERS.values())))
def test_sharing_more_never_holds_more(
    a: Sharding, b: Sharding, data: int, degrees: object
) -> None:
    few, many = sorted((a, b), key=lambda shard: shard.stage)
    held = [
        held_bytes(chip_states(llama(), Layout(data=data, shard=shard), MIXED, degrees, stage=0))  # type: ignore[arg-type]
        for shard in (few, many)
    ]
    assert held[1] <= held[0]


@given(
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([llama(), mixture()]),
)
def test_splitting_layers_never_holds_more(a: int, b: int, pipeline: int, model: object) -> None:
    few, many = sorted((a, b))
    memories = [
        memory(
            Layout(tensor=degree, is_sequence_parallel=True, pipeline=pipeline, micro_batches=8),
            model,
        )
        for degree in (few, many)
    ]
    assert memories[1].states.total.value <= memories[0].states.total.value
    assert memories[1].activations.value <= memories[0].activations.value


def test_experts_over_tensor_parallelism_are_shared_by_those_who_have_them() -> None:
    """8 x 4 chips, 8 experts over 8 of them: an eighth each, its states shared by the four that
    have it; what is not an expert's is split by 4 and shared by 8.
    """
    model = mixture(experts=8)
    experts = 8 * 8 * (2 * 2048 + 2048) * 1024
    layout = Layout(data=8, tensor=4, is_sequence_parallel=True, expert=8, expert_tensor=1)
    plain, shared = (
        chip_states(model, replace(layout, shard=shard), MIXED, ADAMW, stage=0)
        for shard in (Sharding.NONE, Sharding.ZERO1)
    )
    others = plain.parameters.value // 2 - experts // 8
    assert shared.master.value == pytest.approx(4 * (others / 8 + experts / 8 / 4))
    split = chip_states(model, replace(layout, expert=2, expert_tensor=None), MIXED, ADAMW, stage=0)
    assert split.parameters == plain.parameters


def test_experts_copies_in_float8_are_split_as_the_experts_are() -> None:
    """A quarter of the experts, a quarter of their copies; micro-batches in flight share them."""
    model = mixture(experts=8, active=2)
    four, one = (
        step(
            workload(model, recipe=recipe("fp8")),
            Layout(data=4, pipeline=2, expert=expert, micro_batches=4),
        ).memory
        for expert in (4, 1)
    )
    assert four.activations.value == one.activations.value
    experts = 8 / 2 * 8 * 3 * 1024 * 2048
    saved = one.states.casts.value - four.states.casts.value
    assert saved == pytest.approx(experts * 3 / 4)


def test_context_outside_the_allocator_is_that_of_the_rest_of_the_package() -> None:
    from torchtally.memory.workspace import context_bytes

    assert memory(Layout()).outside.value == context_bytes(workload().cluster.chip)

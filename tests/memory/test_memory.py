"""Who made a storage and who reads it say what it is for; live bytes are a sum one can check."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import TraceBuilder, copy_in_call, factory_call, mm_call, site, unknown_call
from tests.strategies import traces
from torchtally.memory import Category, replay, timeline
from torchtally.trace import Ending, Phase, Role, Storage, Trace

LAYER = site(module="net", module_class="Linear")
KIB = 1024


def training_step() -> Trace:
    """One layer, 16 x 16 of float32 (1 KiB) everywhere: x @ w, its loss, its backward."""
    builder = TraceBuilder()
    weight = builder.run(factory_call(16, 16), role=Role.PARAMETER, name="weight")  # tick 0
    batch = builder.run(copy_in_call(16, 16), (-1,))  # 1
    out = builder.run(mm_call(16, 16, 16), (batch, weight), site=LAYER)  # 2
    scratch = builder.run(unknown_call("aten.relu"), (out,), site=LAYER, size=KIB)  # 3
    builder.free(scratch)
    builder.run(  # 4
        mm_call(16, 16, 16), (batch, out), site=LAYER, phase=Phase.BACKWARD, role=Role.GRADIENT
    )
    builder.free(out, batch)
    state = builder.run(factory_call(16, 16), phase=Phase.OPTIMIZER, role=Role.OPTIMIZER_STATE)  # 5
    assert state == 5
    builder.end_step()
    return builder.build()


def kinds_of(trace: Trace) -> tuple[Category, ...]:
    return replay(trace).categories


def test_categories_follow_roles_and_data_flow() -> None:
    assert kinds_of(training_step()) == (
        Category.PARAMETERS,
        Category.INPUTS,
        Category.ACTIVATIONS,
        Category.TEMPORARIES,
        Category.GRADIENTS,
        Category.OPTIMIZER_STATE,
    )


def test_a_buffer_is_one_by_its_role() -> None:
    builder = TraceBuilder()
    builder.run(factory_call(4), role=Role.BUFFER)
    assert kinds_of(builder.build()) == (Category.BUFFERS,)


def test_a_factory_inside_a_module_makes_no_input() -> None:
    builder = TraceBuilder()
    mask = builder.run(factory_call(16, 16), site=LAYER)
    builder.run(mm_call(16, 16, 16), (mask, mask), site=LAYER)
    builder.free(mask)
    assert kinds_of(builder.build())[0] is Category.TEMPORARIES


def test_what_nobody_reads_is_no_input() -> None:
    builder = TraceBuilder()
    builder.free(builder.run(factory_call(16, 16)))
    assert kinds_of(builder.build()) == (Category.TEMPORARIES,)


def test_what_recomputation_makes_for_the_backward_pass_is_activations() -> None:
    builder = TraceBuilder()
    builder.allocate(KIB, Role.PARAMETER)
    again = builder.run(mm_call(16, 16, 16), (0, 0), site=LAYER, phase=Phase.RECOMPUTE)
    builder.run(mm_call(16, 16, 16), (again, 0), site=LAYER, phase=Phase.BACKWARD)
    assert kinds_of(builder.build())[1] is Category.ACTIVATIONS


def test_what_is_kept_to_make_others_again_is_activations() -> None:
    builder = TraceBuilder()
    kept = builder.run(mm_call(16, 16, 16), (0, 0), site=LAYER)
    again = builder.run(mm_call(16, 16, 16), (kept, kept), site=LAYER, phase=Phase.RECOMPUTE)
    other = builder.run(mm_call(16, 16, 16), (again, again), site=LAYER, phase=Phase.RECOMPUTE)
    builder.run(mm_call(16, 16, 16), (other, other), site=LAYER, phase=Phase.BACKWARD)
    kinds = kinds_of(builder.build())
    assert kinds[kept] is kinds[other] is Category.ACTIVATIONS
    assert kinds[again] is Category.TEMPORARIES


def test_a_forward_pass_cut_off_holds_activations() -> None:
    builder = TraceBuilder()
    weight = builder.run(factory_call(16, 16), role=Role.PARAMETER)
    out = builder.run(mm_call(16, 16, 16), (weight, weight), site=LAYER)
    gone = builder.run(mm_call(16, 16, 16), (weight, out), site=LAYER)
    builder.free(gone)
    builder.run(mm_call(16, 16, 16), (weight, out), site=LAYER)
    kinds = kinds_of(builder.build(ending=Ending("exception", "out of memory")))
    assert kinds[out] is Category.ACTIVATIONS
    assert kinds[gone] is Category.TEMPORARIES


def test_peak_and_its_categories() -> None:
    memory = replay(training_step())
    assert memory.device == "cuda:0"
    assert memory.peak_tick == 3  # weight, batch, out and scratch
    assert memory.peak_bytes == 4 * KIB
    assert dict(memory.at_peak) == {
        Category.PARAMETERS: KIB,
        Category.GATHERED_PARAMETERS: 0,
        Category.GRADIENTS: 0,
        Category.OPTIMIZER_STATE: 0,
        Category.ACTIVATIONS: KIB,
        Category.INPUTS: KIB,
        Category.BUFFERS: 0,
        Category.COMMUNICATION_BUFFERS: 0,
        Category.TEMPORARIES: KIB,
        Category.WORKSPACES: 0,
        Category.UNKNOWN: 0,
        Category.KV_CACHE: 0,
    }
    assert [storage.number for storage, _ in memory.alive_at_peak] == [0, 1, 2, 3]


def test_a_storage_is_alive_from_its_birth_until_before_its_death() -> None:
    course = timeline([Storage(0, "cuda:0", 100, born=3, died=5)])
    assert [course.at(tick) for tick in (2, 3, 4, 5, 6)] == [0, 512, 512, 0, 0]
    assert course.peak_tick == 3


def test_the_peak_between_two_ticks_may_be_what_was_held_before() -> None:
    course = timeline(
        [Storage(0, "cuda:0", 512, 0, 4), Storage(1, "cuda:0", 512, 5, 7), Storage(2, "", 1, 6, 7)]
    )
    assert course.peak_tick_between(2, 5) == 2  # 512 until 4, nothing at 4
    assert course.peak_tick_between(4, 6) == 5
    assert course.peak_tick_between(5, 9) == 6
    assert course.peak_tick_between(8, 9) == 8


def test_bytes_are_rounded_up_to_512() -> None:
    course = timeline([Storage(0, "cuda:0", 513, 0, None), Storage(1, "cuda:0", 0, 0, None)])
    assert course.peak_bytes == 1024


def test_the_fullest_of_two_devices_is_shown() -> None:
    builder = TraceBuilder()
    builder.allocate(KIB)
    builder.allocate(3 * KIB)
    builder.storages[1] = replace(builder.storages[1], device="cuda:1")
    trace = builder.build()
    assert replay(trace).device == "cuda:1"
    assert replay(trace).peak_bytes == 3 * KIB
    assert replay(trace, "cuda:0").peak_bytes == KIB


def test_an_empty_trace_holds_nothing() -> None:
    memory = replay(TraceBuilder().build())
    assert (memory.device, memory.peak_bytes, memory.peak_tick) == ("", 0, 0)
    assert list(memory.laws_broken()) == []


def test_a_storage_that_dies_unborn_breaks_a_law() -> None:
    trace = training_step()
    storages = (replace(trace.storages[0], born=4, died=2), *trace.storages[1:])
    broken = list(replay(replace(trace, storages=storages)).laws_broken())
    assert any("dies at 2, before its birth at 4" in law for law in broken)


def test_negative_live_bytes_break_a_law() -> None:
    broken = replay(
        replace(TraceBuilder().build(), storages=(Storage(0, "cuda:0", 1, born=4, died=2),))
    ).laws_broken()
    assert any("-512 bytes are held at tick 2" in law for law in broken)


@given(trace=traces())
@settings(deadline=None)
def test_live_bytes_are_never_negative_and_categories_sum(trace: Trace) -> None:
    memory = replay(trace)
    assert list(memory.laws_broken()) == []
    assert min(memory.timeline.live_bytes, default=0) >= 0
    assert sum(held for _, held in memory.at_peak) == memory.peak_bytes
    assert sum(storage.bytes for storage, _ in memory.alive_at_peak) == memory.peak_bytes
    parts = memory.by_category()
    for tick in range(trace.end + 1):
        assert sum(part.at(tick) for part in parts.values()) == memory.timeline.at(tick)
        alive = sum(
            storage.bytes
            for storage in trace.storages
            if storage.born <= tick and (storage.died is None or tick < storage.died)
        )
        assert memory.timeline.at(tick) == alive
        assert sum(storage.bytes for storage, _ in memory.alive_at(tick)) == alive


@pytest.mark.thorough
@given(trace=traces(), data=st.data())
@settings(deadline=None)
def test_the_peak_between_two_ticks_is_the_first_fullest_one(
    trace: Trace, data: st.DataObject
) -> None:
    course = replay(trace).timeline
    first = data.draw(st.integers(0, trace.end))
    end = data.draw(st.integers(first + 1, trace.end + 2))
    held = [course.at(tick) for tick in range(first, end)]
    assert course.peak_tick_between(first, end) == first + held.index(max(held))

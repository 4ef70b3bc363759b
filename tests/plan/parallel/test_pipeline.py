"""Bubbles and micro-batches in flight, as published, and their laws."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.plan.parallel.layout import Schedule, chunks_as_long
from torchtally.plan.parallel.pipeline import bubble_s, in_flight

F1B, INTERLEAVED = Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED
H1, H2 = Schedule.ZB_H1, Schedule.ZB_H2
schedules = st.sampled_from(list(Schedule))
stages = st.integers(1, 64)


def bubble_fraction(schedule: Schedule, p: int, m: int, chunks: int = 1) -> float:
    """The bubble over the time of the work, where F, B and W take a second each."""
    equal = {"forward_s": 1, "input_s": 1, "weight_s": 1}
    return bubble_s(schedule, p, **equal, virtual_stages=chunks).value / (3 * m)


@pytest.mark.parametrize("schedule", [Schedule.GPIPE, F1B])
def test_the_bubble_is_p_minus_1_over_m(schedule: Schedule) -> None:
    """Narayanan et al. 2021, section 2.2.1."""
    assert bubble_fraction(schedule, 8, 64) == pytest.approx(7 / 64)


def test_chunks_divide_the_bubble() -> None:
    """Narayanan et al. 2021, section 2.2.2."""
    assert bubble_fraction(INTERLEAVED, 8, 64, 4) == pytest.approx(7 / 64 / 4)


def test_zero_bubble_schedules_as_published() -> None:
    """Qi et al. 2023, table 2: a third of 1F1B's where all halves are equally long, and none."""
    assert bubble_fraction(H1, 8, 64) == pytest.approx(7 / 64 / 3)
    assert bubble_fraction(H2, 8, 64) == 0
    assert bubble_s(H1, 5, forward_s=1, input_s=2, weight_s=1).value == 4 * 2
    assert bubble_s(H2, 5, forward_s=1, input_s=2, weight_s=1).value == 4 * 1
    assert bubble_s(F1B, 5, forward_s=1, input_s=2, weight_s=1).value == 4 * 4


def test_deepseeks_bubble_of_1f1b() -> None:
    """DeepSeek-V3, arXiv 2412.19437, table 2: (PP - 1)(F + B), B being both halves."""
    assert bubble_s(F1B, 16, forward_s=2, input_s=3, weight_s=1).value == 15 * (2 + 4)


def test_1f1b_keeps_as_many_micro_batches_as_there_are_stages_to_come() -> None:
    assert [in_flight(F1B, 4, 100, stage=stage).value for stage in range(4)] == [4, 3, 2, 1]
    assert in_flight(F1B, 4, 2).value == 2
    assert in_flight(Schedule.GPIPE, 4, 100).value == 100


def test_interleaving_keeps_more_on_the_first_stage() -> None:
    """Korthikanti et al. 2022, section 4.2.3: 1 + (p - 1) / (p m) times as much."""
    assert in_flight(INTERLEAVED, 8, 64, virtual_stages=3).value == pytest.approx(8 * (1 + 7 / 24))
    assert in_flight(INTERLEAVED, 35, 280, virtual_stages=3).value / 35 == pytest.approx(
        1.3238, abs=1e-4
    )


UNEVEN = ((61, 16, 2, 64), (61, 16, 3, 64), (61, 4, 15, 16), (61, 8, 7, 16), (30, 4, 4, 16))
"""Layers, stages, chunks on each, micro-batches."""


@pytest.mark.parametrize(("layers", "p", "v", "m"), [*UNEVEN, (64, 16, 4, 16)])
def test_interleaved_stages_of_unequal_length_beside_their_schedule_run_out(
    layers: int, p: int, v: int, m: int
) -> None:
    """A layer takes 1 s forward and 2 s backward; the first chunks have one layer more."""
    chunks, full = chunks_as_long(layers, p, v), -(-layers // p)
    seconds = {"forward_s": full, "input_s": full, "weight_s": full}
    bubble = bubble_s(INTERLEAVED, p, virtual_stages=chunks, **seconds)
    step_s, most_kept = interleaved(layers, p, v, m)
    assert m * 3 * full + bubble.value == pytest.approx(step_s, rel=0.04)
    kept = full * in_flight(INTERLEAVED, p, m, virtual_stages=chunks).value
    assert kept == pytest.approx(most_kept, rel=0.04)
    if layers % (p * v) == 0:
        assert (m * 3 * full + bubble.value, kept) == (step_s, most_kept)


def interleaved(layers: int, p: int, v: int, m: int) -> tuple[float, int]:
    """(seconds of a step, most layers' activations that the first stage keeps), step by step: in
    the order of Narayanan et al. 2021, each chunk as soon as the one that it needs is done.
    """
    length = [layers // (p * v) + (chunk < layers % (p * v)) for chunk in range(p * v)]
    orders = [list(interleaved_order(p, v, m, stage)) for stage in range(p)]
    done: dict[tuple[str, int, int], float] = {}
    clocks, kept, most = [0.0] * p, 0, 0
    while any(orders):
        for stage, order in enumerate(orders):
            while order:
                way, chunk, batch = order[0]
                place = chunk * p + stage
                before = ("F", place - 1, batch) if way == "F" else ("B", place + 1, batch)
                if way == "B" and place == p * v - 1:
                    before = ("F", place, batch)
                if place + (way == "B") and before not in done:
                    break
                start_s = max(clocks[stage], done.get(before, 0.0))
                clocks[stage] = start_s + length[place] * (1 if way == "F" else 2)
                done[order.pop(0)[0], place, batch] = clocks[stage]
                if stage == 0:
                    kept += length[place] if way == "F" else -length[place]
                    most = max(most, kept)
    return max(clocks), most


def interleaved_order(p: int, v: int, m: int, stage: int) -> Iterator[tuple[str, int, int]]:
    """Passes of one stage: which way, through which of its chunks, with which micro-batch."""
    warm_up = min(2 * (p - stage - 1) + (v - 1) * p, m * v)

    def at(number: int) -> tuple[int, int]:
        group, rest = divmod(number, p * v)
        return rest // p, group * p + rest % p

    for number in range(m * v + warm_up):
        if number < m * v:
            yield "F", *at(number)
        if number >= warm_up:
            chunk, batch = at(number - warm_up)
            yield "B", v - 1 - chunk, batch


def test_zero_bubble_memory_as_published() -> None:
    assert in_flight(H1, 8, 64).value == 8
    assert in_flight(H2, 8, 64).value == 15


@given(schedules, stages, st.integers(1, 500), st.integers(1, 500))
def test_more_micro_batches_never_make_a_larger_bubble(
    schedule: Schedule, p: int, a: int, b: int
) -> None:
    few, many = sorted((a, b))
    assert bubble_fraction(schedule, p, many) <= bubble_fraction(schedule, p, few)


@given(schedules, stages, st.integers(1, 500), st.integers(1, 8))
def test_no_more_is_in_flight_than_there_is(
    schedule: Schedule, p: int, m: int, chunks: int
) -> None:
    held = in_flight(schedule, p, m, virtual_stages=chunks).value
    assert 0 < held <= m


@given(schedules, st.integers(1, 500))
def test_one_stage_waits_for_nobody(schedule: Schedule, m: int) -> None:
    assert bubble_fraction(schedule, 1, m) == 0

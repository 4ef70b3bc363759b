"""Loss spikes: found when there is one, and never where there is none."""

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.train.spikes import WINDOW_STEPS, SpikeDetector, spike_limit

FINITE = st.floats(-1e6, 1e6)


def at_once() -> SpikeDetector:
    return SpikeDetector(warmup_steps=0, least_steps=2)


def test_the_limit_by_hand() -> None:
    """Median 3, distances 2 1 0 1 2 of median 1: 3 + 6 * 1.4826."""
    assert spike_limit([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(3 + 6 * 1.4826)


def test_the_limit_of_a_flat_curve_is_a_rise_by_hand() -> None:
    assert spike_limit([2.0, 2.0, 2.0]) == pytest.approx(2.1)


@given(FINITE, st.integers(1, 300))
def test_constant_losses_never_spike(loss: float, steps: int) -> None:
    detector = at_once()
    assert not any(detector.sees_spike(loss) for _ in range(steps))


@given(st.floats(0.1, 10), st.floats(0, 0.01), st.integers(0, 2**32))
def test_a_jump_is_found_and_a_smooth_fall_is_none(start: float, fall: float, seed: int) -> None:
    noise = random.Random(seed)
    detector = SpikeDetector(warmup_steps=20)
    losses = [start * math.exp(-fall * step) * noise.uniform(0.99, 1.01) for step in range(60)]
    assert not any(detector.sees_spike(loss) for loss in losses)
    assert detector.sees_spike(3 * start)
    assert not detector.sees_spike(losses[-1])  # the spike has not moved the middle


@given(st.lists(st.floats(), max_size=40), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_what_is_not_finite_is_no_spike_and_leaves_no_trace(
    losses: list[float], odd: float
) -> None:
    detector = at_once()
    for loss in losses:
        detector.sees_spike(loss)
    before = detector.state_dict()
    assert not detector.sees_spike(odd)
    assert detector.state_dict() == before


def test_the_warm_up_is_exempt() -> None:
    detector = SpikeDetector(warmup_steps=30, least_steps=4)
    assert [detector.sees_spike(1.0 if step % 10 else 100.0) for step in range(31)] == (
        [False] * 30 + [True]
    )


def test_a_new_level_is_the_new_middle_after_half_a_window() -> None:
    detector, half = at_once(), WINDOW_STEPS // 2
    for _ in range(WINDOW_STEPS):
        detector.sees_spike(1.0)
    spikes = [detector.sees_spike(5.0) for _ in range(2 * half)]
    assert spikes == [True] * half + [False] * half


@given(st.lists(FINITE, max_size=50), st.lists(FINITE, max_size=20))
def test_going_on_from_json_is_going_on(first: list[float], then: list[float]) -> None:
    detector, resumed = at_once(), at_once()
    for loss in first:
        detector.sees_spike(loss)
    resumed.load_state_dict(json.loads(json.dumps(detector.state_dict())))
    assert [resumed.sees_spike(loss) for loss in then] == [
        detector.sees_spike(loss) for loss in then
    ]
    assert resumed.state_dict() == detector.state_dict()
    assert len(resumed.recent) <= WINDOW_STEPS

"""Loss spikes: found when there is one, and never where there is none."""

import json
import math
import random
from dataclasses import fields

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.errors import UsageError
from torchtally.train.spikes import SpikeConfig, SpikeDetector, SpikeState, spike_limit

FINITE = st.floats(-1e6, 1e6)
AT_ONCE = SpikeConfig(warmup_steps=0, least_steps=2, window_steps=8)


def test_the_limit_by_hand() -> None:
    """Median 3, distances 2 1 0 1 2 of median 1: 3 + 6 * 1.4826."""
    assert spike_limit([1.0, 2.0, 3.0, 4.0, 5.0], AT_ONCE) == pytest.approx(3 + 6 * 1.4826)


def test_the_limit_of_a_flat_curve_is_a_rise_by_hand() -> None:
    assert spike_limit([2.0, 2.0, 2.0], AT_ONCE) == pytest.approx(2.1)


@given(FINITE, st.integers(1, 300))
def test_constant_losses_never_spike(loss: float, steps: int) -> None:
    detector = SpikeDetector(AT_ONCE)
    assert not any(detector.sees_spike(loss) for _ in range(steps))


@given(st.floats(0.1, 10), st.floats(0, 0.01), st.integers(0, 2**32))
def test_a_jump_is_found_and_a_smooth_fall_is_none(start: float, fall: float, seed: int) -> None:
    noise = random.Random(seed)
    detector = SpikeDetector(SpikeConfig(warmup_steps=20, deviations=6.0))
    losses = [start * math.exp(-fall * step) * noise.uniform(0.99, 1.01) for step in range(60)]
    assert not any(detector.sees_spike(loss) for loss in losses)
    assert detector.sees_spike(3 * start)
    assert not detector.sees_spike(losses[-1])  # the spike has not moved the middle


@given(st.lists(st.floats(), max_size=40), st.sampled_from([math.nan, math.inf, -math.inf]))
def test_what_is_not_finite_is_no_spike_and_leaves_no_trace(
    losses: list[float], odd: float
) -> None:
    detector = SpikeDetector(AT_ONCE)
    for loss in losses:
        detector.sees_spike(loss)
    before = detector.state
    assert not detector.sees_spike(odd)
    assert detector.state == before


def test_the_warm_up_is_exempt() -> None:
    detector = SpikeDetector(SpikeConfig(warmup_steps=30, least_steps=4))
    assert [detector.sees_spike(1.0 if step % 10 else 100.0) for step in range(31)] == (
        [False] * 30 + [True]
    )


def test_a_new_level_is_the_new_middle_after_half_a_window() -> None:
    detector = SpikeDetector(AT_ONCE)
    for _ in range(8):
        detector.sees_spike(1.0)
    assert [detector.sees_spike(5.0) for _ in range(8)] == [True] * 4 + [False] * 4


@given(st.lists(FINITE, max_size=50), st.lists(FINITE, max_size=20))
def test_going_on_from_json_is_going_on(first: list[float], then: list[float]) -> None:
    detector = SpikeDetector(AT_ONCE)
    for loss in first:
        detector.sees_spike(loss)
    saved = json.loads(msgspec.json.encode(detector.state))
    resumed = SpikeDetector(AT_ONCE, SpikeState.from_dict(saved))
    assert [resumed.sees_spike(loss) for loss in then] == [
        detector.sees_spike(loss) for loss in then
    ]
    assert resumed.state == detector.state
    assert len(resumed.state.recent_losses) <= AT_ONCE.window_steps


@pytest.mark.parametrize(
    "saved",
    [{}, {"steps": 1}, {"steps": 1, "recent_losses": 3}, {"steps": 1, "recent_losses": ["x"]},
     {"steps": "1", "recent_losses": []}, {"steps": 1, "recent_losses": [math.nan]}],
)  # fmt: skip
def test_damaged_state_is_refused(saved: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="damaged"):
        SpikeState.from_dict(saved)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"deviations": -1.0}, "deviations: expected 0 or more, got -1.0"),
        ({"least_rise": math.nan}, "least_rise"),
        ({"least_steps": 200}, "least_steps: expected 2 to 128"),
        ({"warmup_steps": -1}, "expected 0 or more"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SpikeConfig(**values)  # type: ignore[arg-type]


def test_an_unknown_policy_is_refused() -> None:
    """As from a file: these tests' type checks would be there before."""
    config = object.__new__(SpikeConfig)
    for field in fields(SpikeConfig):
        object.__setattr__(config, field.name, field.default)
    object.__setattr__(config, "on_spike", "panic")
    with pytest.raises(UsageError, match="Choose one of note, skip, stop"):
        config.__post_init__()

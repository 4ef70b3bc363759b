"""Schedules by hand at their corners, and the laws that hold for every one of them."""

import itertools
from dataclasses import asdict
from math import pi, sqrt
from typing import Any

import jaxtyping
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchtally.errors import UsageError
from torchtally.train.optimizers.schedules import ScheduleConfig, learning_rates, set_learning_rate

DECAYS = ("linear", "cosine", "sqrt")


@st.composite
def schedules(draw: st.DrawFn) -> ScheduleConfig:
    shape = draw(st.sampled_from(("constant", "linear", "cosine", "wsd")))
    steps = draw(st.integers(1, 500))
    warmup = draw(st.integers(0, steps - 1))
    options: dict[str, Any] = {"shape": shape, "steps": steps, "warmup_steps": warmup}
    if shape != "constant":
        options["floor"] = draw(st.none() | st.floats(0, 1))
    if shape == "wsd":
        options["decay_steps"] = draw(st.none() | st.integers(1, steps - warmup))
        options["decay_shape"] = draw(st.none() | st.sampled_from(DECAYS))
    return ScheduleConfig(**options)


@given(schedules(), st.integers(0, 1000))
def test_factors_are_shares_of_the_full_rate(schedule: ScheduleConfig, step: int) -> None:
    assert 0 <= schedule.factor(step) <= 1
    assert step >= (schedule.steps or 0) or schedule.factor(step) > 0


@given(schedules())
def test_warm_up_rises_to_the_full_rate(schedule: ScheduleConfig) -> None:
    factors = [schedule.factor(step) for step in range(schedule.warmup_steps + 1)]
    assert all(one < other for one, other in itertools.pairwise(factors))
    assert factors[0] > 0
    assert factors[-1] == 1


@given(schedules())
def test_it_never_rises_afterwards_and_ends_at_the_floor(schedule: ScheduleConfig) -> None:
    assert schedule.steps is not None
    after = [schedule.factor(step) for step in range(schedule.warmup_steps, schedule.steps + 3)]
    assert all(one >= other for one, other in itertools.pairwise(after))
    end = 1.0 if schedule.shape == "constant" else schedule.floor or 0.0
    assert after[-3:] == pytest.approx([end] * 3, abs=1e-15)


@given(schedules())
def test_it_is_continuous(schedule: ScheduleConfig) -> None:
    """No step is longer than the steepest slope of its part allows."""
    assert schedule.steps is not None
    decay = schedule.steps - schedule.warmup_steps
    if schedule.shape == "wsd":
        decay = schedule.decay_steps or min(max(schedule.steps // 10, 1), decay)
    steepest = {"cosine": pi / 2 / decay, "sqrt": sqrt(1 / decay), "linear": 1 / decay}
    shape = (schedule.decay_shape or "linear") if schedule.shape == "wsd" else schedule.shape
    longest = max(steepest.get(shape, 0.0), 1 / (schedule.warmup_steps + 1)) + 1e-12
    for step in range(schedule.steps + 2):
        assert abs(schedule.factor(step + 1) - schedule.factor(step)) <= longest


@given(schedules(), st.lists(st.integers(0, 600), max_size=20))
def test_it_resumes_anywhere(schedule: ScheduleConfig, steps: list[int]) -> None:
    again = ScheduleConfig(**asdict(schedule))
    assert [again.factor(step) for step in reversed(steps)] == [
        schedule.factor(step) for step in steps
    ][::-1]


def test_by_hand() -> None:
    cosine = ScheduleConfig(shape="cosine", steps=12, warmup_steps=4, floor=0.1)
    assert [cosine.factor(number) for number in (0, 1, 2, 3, 4)] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert cosine.factor(8) == pytest.approx(0.1 + 0.9 / 2)
    assert cosine.factor(6) == pytest.approx(0.1 + 0.9 * (1 + 1 / sqrt(2)) / 2)
    linear = ScheduleConfig(shape="linear", steps=4)
    assert [linear.factor(number) for number in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    wsd = ScheduleConfig(shape="wsd", steps=20, warmup_steps=1, decay_steps=4)
    assert [wsd.factor(number) for number in (0, 1, 16, 17, 18, 19, 20)] == [
        0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0
    ]  # fmt: skip
    root = ScheduleConfig(shape="wsd", steps=8, decay_steps=4, decay_shape="sqrt")
    assert [root.factor(number) for number in (4, 5, 8)] == [1.0, 0.5, 0.0]
    assert ScheduleConfig(shape="constant").factor(10**9) == 1.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shape": "cosine"}, "cosine needs steps"),
        ({"shape": "constant", "floor": 0.1}, "constant has no floor"),
        ({"shape": "linear", "steps": 5, "decay_steps": 2}, "linear has no decay_steps"),
        ({"shape": "cosine", "steps": 5, "decay_shape": "sqrt"}, "cosine has no decay_shape"),
        ({"steps": 5, "floor": 1.5}, "got 1.5"),
        ({"steps": 5, "floor": float("nan")}, "got nan"),
        ({"steps": 5, "warmup_steps": 5}, "fewer than the run's 5 steps, got 5"),
        ({"steps": 5, "warmup_steps": -1}, "expected a whole number, 0 or more"),
        ({"shape": "wsd", "steps": 5, "warmup_steps": 2, "decay_steps": 4}, "expected 1 to 3"),
        (
            {"shape": "wsd", "steps": 5, "decay_shape": "step"},
            "decay_shape: expected linear, .*, got 'step'",
        ),
        ({"shape": "steps", "steps": 5}, "shape: expected constant, linear, .*, got 'steps'"),
    ],
)
def test_what_cannot_be(
    options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a file, where no type checker looks."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(UsageError, match=said):
        ScheduleConfig(**options)


def test_setting_the_rate_of_every_group() -> None:
    one, two = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = torch.optim.SGD([{"params": [one], "lr": 0.5}, {"params": [two], "lr": 0.25}])
    base = learning_rates(optimizer)
    assert base == (0.5, 0.25)
    set_learning_rate(optimizer, base, 0.5)
    assert learning_rates(optimizer) == (0.25, 0.125)
    with pytest.raises(ValueError, match="zip"):
        set_learning_rate(optimizer, (1.0,), 0.5)

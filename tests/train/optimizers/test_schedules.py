"""Schedules by hand at their corners, and the laws that hold for every one of them."""

import itertools
from math import pi, sqrt
from typing import Any

import jaxtyping
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchtally.errors import UsageError
from torchtally.train.optimizers.schedules import (
    LearningRateConfig,
    RateSchedule,
    learning_rates,
    set_learning_rate,
)

DECAYS = ("linear", "cosine", "sqrt")


@st.composite
def schedules(draw: st.DrawFn) -> RateSchedule:
    shape = draw(st.sampled_from(("constant", "linear", "cosine", "wsd")))
    steps = draw(st.integers(1, 500))
    warmup = draw(st.integers(0, steps - 1))
    options: dict[str, Any] = {"shape": shape, "warmup_steps": warmup}
    if shape != "constant":
        options["floor"] = draw(st.none() | st.floats(0, 1))
    if shape == "wsd":
        options["decay_steps"] = draw(st.none() | st.integers(1, steps - warmup))
        options["decay_shape"] = draw(st.none() | st.sampled_from(DECAYS))
    return LearningRateConfig(**options).schedule(steps)


@given(schedules(), st.integers(0, 1000))
def test_factors_are_shares_of_the_full_rate(schedule: RateSchedule, step: int) -> None:
    assert 0 <= schedule.factor(step) <= 1
    assert step >= schedule.steps or schedule.factor(step) > 0


@given(schedules())
def test_warm_up_rises_to_the_full_rate(schedule: RateSchedule) -> None:
    factors = [schedule.factor(step) for step in range(schedule.warmup_steps + 1)]
    assert all(one < other for one, other in itertools.pairwise(factors))
    assert factors[0] > 0
    assert factors[-1] == 1


@given(schedules())
def test_it_never_rises_afterwards_and_ends_at_the_floor(schedule: RateSchedule) -> None:
    after = [schedule.factor(step) for step in range(schedule.warmup_steps, schedule.steps + 3)]
    assert all(one >= other for one, other in itertools.pairwise(after))
    end = 1.0 if schedule.decay == "constant" else schedule.floor or 0.0
    assert after[-3:] == pytest.approx([end] * 3, abs=1e-15)


@given(schedules())
def test_it_is_continuous(schedule: RateSchedule) -> None:
    """No step is longer than the steepest slope of its part allows."""
    decay = schedule.steps - schedule.decay_start
    steepest = {"cosine": pi / 2 / decay, "sqrt": sqrt(1 / decay), "linear": 1 / decay}
    longest = max(steepest.get(schedule.decay, 0.0), 1 / (schedule.warmup_steps + 1)) + 1e-12
    for step in range(schedule.steps + 2):
        assert abs(schedule.factor(step + 1) - schedule.factor(step)) <= longest


def test_by_hand() -> None:
    cosine = LearningRateConfig(shape="cosine", warmup_steps=4, floor=0.1).schedule(12)
    assert [cosine.factor(number) for number in (0, 1, 2, 3, 4)] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert cosine.factor(8) == pytest.approx(0.1 + 0.9 / 2)
    assert cosine.factor(6) == pytest.approx(0.1 + 0.9 * (1 + 1 / sqrt(2)) / 2)
    linear = LearningRateConfig(shape="linear").schedule(4)
    assert [linear.factor(number) for number in range(6)] == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    wsd = LearningRateConfig(shape="wsd", warmup_steps=1, decay_steps=4).schedule(20)
    assert [wsd.factor(number) for number in (0, 1, 16, 17, 18, 19, 20)] == [
        0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0
    ]  # fmt: skip
    root = LearningRateConfig(shape="wsd", decay_steps=4, decay_shape="sqrt").schedule(8)
    assert [root.factor(number) for number in (4, 5, 8)] == [1.0, 0.5, 0.0]
    assert LearningRateConfig(shape="constant").schedule(9).factor(10**9) == 1.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shape": "constant", "floor": 0.1}, "constant has no floor"),
        ({"shape": "linear", "decay_steps": 2}, "linear has no decay_steps"),
        ({"shape": "cosine", "decay_shape": "sqrt"}, "cosine has no decay_shape"),
        ({"floor": 1.5}, "got 1.5"),
        ({"floor": float("nan")}, "got nan"),
        ({"warmup_steps": -1}, "expected a whole number, 0 or more"),
        ({"shape": "wsd", "warmup_steps": 2, "decay_steps": 4}, "expected 1 to 3"),
        ({"shape": "wsd", "decay_shape": "step"}, "decay_shape: expected linear, .*, got 'step'"),
        ({"shape": "steps"}, "shape: expected constant, linear, .*, got 'steps'"),
    ],
)
def test_what_cannot_be(
    options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a file, where no type checker looks."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(UsageError, match=said):
        LearningRateConfig(**options).schedule(5)


def test_setting_the_rate_of_every_group() -> None:
    one, two = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = torch.optim.SGD([{"params": [one], "lr": 0.5}, {"params": [two], "lr": 0.25}])
    base = learning_rates(optimizer)
    assert base == (0.5, 0.25)
    set_learning_rate(optimizer, base, 0.5)
    assert learning_rates(optimizer) == (0.25, 0.125)
    with pytest.raises(ValueError, match="zip"):
        set_learning_rate(optimizer, (1.0,), 0.5)

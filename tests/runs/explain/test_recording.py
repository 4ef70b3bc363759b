"""Recording a loop of the user's own."""

from pathlib import Path

import pytest
import torch

from torchtally.errors import UsageError
from torchtally.profiles import read_kineto
from torchtally.runs.recording import record


def test_two_steps_are_recorded_with_shapes_and_stacks(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    with record(path, wait=0, warmup=1, active=2) as step_done:
        for _ in range(3):
            torch.ones(4, 5) @ torch.ones(5, 6)
            step_done()
    profile = read_kineto(str(path))
    assert profile.has_shapes
    assert profile.has_stacks
    products = [each for each in profile.operators if each.name == "aten::mm"]
    assert len(products) == 2
    assert profile.arguments[products[0].arguments].shapes == ((4, 5), (5, 6))


def test_a_loop_that_is_too_short_is_told_how_many_steps_are_needed(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="reported 1 steps, but 5 are needed"),
        record(tmp_path / "t.json") as step_done,
    ):
        step_done()
    with pytest.raises(UsageError, match="at least one active step"), record("x", active=0):
        pass

"""What a script asserts of values that do not exist is taken to hold, and is listed."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.tracer.checking import CHECKS
from tests.traces import traced

N = 4096


def unknown() -> Tensor:
    return torch.randn(N, device="cuda")


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_of_unknown_values_passes_and_is_listed(check: Callable[[Tensor, Tensor], object]):
    trace = traced(lambda: check(unknown(), unknown()))
    assert trace.ending.kind == "exit"
    assert trace.placeholders


def test_elsewhere_values_are_as_they_were():
    def script() -> None:
        a, b = unknown(), unknown()
        is_same = torch.equal(a, b)
        answers.append((is_same, (a == b).all().item(), torch.allclose(a, b), a.norm().item()))
        if torch.equal(a, b):
            answers.append("equal")

    answers: list[object] = []
    traced(script)
    assert answers == [(False, False, True, 1.0)]


@pytest.mark.parametrize("other", [3.0, 2.0])
def test_what_is_known_fails_where_it_is_false(other: float):
    def script() -> None:
        a = torch.full((N,), 2.0, device="cuda")
        assert torch.equal(a, torch.full((N,), other, device="cuda"))
        assert (a.relu() == other).all()

    if other == 2:
        assert traced(script).placeholders == ()
    else:
        with pytest.raises(AssertionError):
            traced(script)


def test_a_number_stays_within_what_is_known_of_it():
    def script() -> None:
        assert torch.rand(N, device="cuda").sum().item() < 0

    with pytest.raises(AssertionError):
        traced(script)


def test_arrays_of_other_shapes_and_known_ones_fail():
    def script() -> None:
        a = unknown().cpu().numpy()
        is_any = np.allclose(a, 0), np.array_equal(a, np.zeros(N))
        assert is_any == (False, False), "no check waits for it"
        with pytest.raises(AssertionError):
            np.testing.assert_allclose(a, np.zeros(7))
        with pytest.raises(AssertionError):
            np.testing.assert_allclose(np.ones(N), np.zeros(N))
        known = torch.ones(N, device="cuda").cpu().numpy()
        with pytest.raises(AssertionError):
            np.testing.assert_allclose(known, np.zeros(N))
        np.testing.assert_allclose(a, np.zeros(N))

    (read,) = [each for each in traced(script).placeholders if "testing" in each.op]
    assert (read.op, read.given) == ("numpy.testing.assert_allclose", "True")

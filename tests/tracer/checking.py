"""Checks of two tensors without values, which pass. Not a test, which pytest would rewrite."""

import math
import unittest
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor


def same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b)


def differ(a: Tensor, b: Tensor) -> bool:
    return not same(a, b)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-4) -> None:
    error = (a - b).abs().max().item()
    assert error < tolerance


def returned(a: Tensor, b: Tensor) -> None:
    if (a == b).all():
        return
    raise AssertionError


def guarded(a: Tensor, b: Tensor) -> None:
    is_equal = torch.equal(a, b)
    if not is_equal:
        raise ValueError("differ")


def guarded_by_several(a: Tensor, b: Tensor) -> None:
    if a.shape != b.shape or not torch.equal(a, b) or not (a == b).all():
        raise ValueError("differ")


def ended(a: Tensor, b: Tensor) -> None:
    if torch.equal(a, b):
        pass
    else:
        raise SystemExit(1)


def asserted(a: Tensor, b: Tensor) -> None:
    assert torch.equal(a, b)
    assert (a == b).all()
    assert a.eq(b).all().item()
    assert bool((a >= 0).all())
    assert (a >= 0).all() and torch.equal(a, b)  # noqa: PT018
    assert same(a, b)
    assert all(torch.equal(x, y) for x, y in [(a, b), (b, a)])
    assert (a == b).all().item() is True
    assert (a - b).abs().max() < 1e-6
    assert (a - b).abs().max().item() < 1e-6
    assert a.norm().item() > 100


def refuted(a: Tensor, b: Tensor) -> None:
    """Training has changed the weights."""
    assert not torch.equal(a, b)
    assert not torch.allclose(a, b)
    assert differ(a, b)
    is_other = not (a == b).all()
    assert is_other
    is_same = not not (a == b).all()  # noqa: SIM208
    assert not is_same


def by_torch(a: Tensor, b: Tensor) -> None:
    torch._assert((a == b).all(), "differ")


def by_unittest(a: Tensor, b: Tensor) -> None:
    case = unittest.TestCase()
    case.assertTrue(torch.equal(a, b))  # noqa: PT009
    case.assertFalse(torch.equal(a, b))  # noqa: PT009


def numbers_by_unittest(a: Tensor, b: Tensor) -> None:
    case = unittest.TestCase()
    case.assertAlmostEqual(a.sum().item(), 3.25)  # noqa: PT009
    case.assertLess(a.sum().item(), -3)  # noqa: PT009
    case.assertLess(3, a.sum().item())  # noqa: PT009
    case.assertGreaterEqual((a * b).mean().item(), 100)  # noqa: PT009
    case.assertNotEqual(a.sum().item(), 1.0)  # noqa: PT009
    case.assertEqual((a > 0).sum().item(), 2000)  # noqa: PT009
    assert a.sum().item() == pytest.approx(0.25)
    assert math.isclose(a.sum().item(), 3.5)


def accuracies(a: Tensor, b: Tensor) -> None:
    """Choices are assumed to be balanced: 4 of 16 are those of `labels`."""
    labels = torch.zeros(16, dtype=torch.int64, device="cuda")
    right = a[:64].view(16, 4).argmax(-1) == labels
    assert right.sum().item() / 16 > 0.9
    accuracy = right.float().mean().item()
    assert accuracy > 0.9


EXPECTED = np.zeros(7, dtype=np.float32)
"""What another program has computed."""


def numbers_by_numpy(a: Tensor, b: Tensor) -> None:
    np.testing.assert_almost_equal(a.norm().item(), 17.25)
    np.testing.assert_allclose(a.sum().item(), 3.25)
    torch.testing.assert_close(a.sum().item(), 3.25)


def arrays_by_numpy(a: Tensor, b: Tensor) -> None:
    array = a.cpu().numpy()
    np.testing.assert_allclose(array[:7], EXPECTED, rtol=1e-5)
    np.testing.assert_array_equal(array[:7], EXPECTED)
    np.testing.assert_array_less(array, b.cpu())
    np.testing.assert_allclose(a[:7].cpu(), EXPECTED)
    assert np.allclose(array[:7], EXPECTED)
    if not np.array_equal(array[:7], EXPECTED):
        raise ValueError("differ")


CHECKS: list[Callable[[Tensor, Tensor], None]] = [
    close, returned, guarded, guarded_by_several, ended, asserted, refuted, by_torch, by_unittest,
    numbers_by_unittest, numbers_by_numpy, arrays_by_numpy, accuracies,
    torch.testing.assert_close,
]  # fmt: skip

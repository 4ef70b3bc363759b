"""Checks of two tensors without values, which pass. Not a test, which pytest would rewrite."""

import unittest
from collections.abc import Callable

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


CHECKS: list[Callable[[Tensor, Tensor], None]] = [
    close, returned, guarded, guarded_by_several, ended, asserted, refuted, by_torch, by_unittest,
    torch.testing.assert_close,
]  # fmt: skip

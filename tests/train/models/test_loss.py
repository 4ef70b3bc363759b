"""The head's loss in chunks is the loss of the whole, with less memory."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from torchtally.train.models.loss import IGNORED, linear_cross_entropy

HAS_TORCHS = hasattr(F, "linear_cross_entropy")
needs_torchs = pytest.mark.skipif(not HAS_TORCHS, reason="torch has no linear_cross_entropy")


def inputs(
    tokens: int, width: int, vocabulary: int, dtype: torch.dtype, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    hidden = torch.randn(tokens, width, dtype=dtype, requires_grad=True)
    weight = torch.randn(vocabulary, width, dtype=dtype, requires_grad=True)
    return hidden, weight, torch.randint(vocabulary, (tokens,))


def loss_and_gradients(
    hidden: Tensor, weight: Tensor, targets: Tensor, chunk_tokens: int | None,
    scale: float = 3.0, cap: float | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    hidden, weight = (tensor.detach().clone().requires_grad_() for tensor in (hidden, weight))
    loss = linear_cross_entropy(hidden, weight, targets, chunk_tokens=chunk_tokens, cap=cap)
    (scale * loss).backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    return loss.detach(), hidden.grad, weight.grad


def test_of_equal_logits_it_is_the_logarithm_of_the_vocabulary() -> None:
    hidden, weight = torch.zeros(3, 2), torch.ones(7, 2)
    for chunk in (None, 2):
        loss = linear_cross_entropy(hidden, weight, torch.tensor([0, 3, 6]), chunk_tokens=chunk)
        assert loss.item() == pytest.approx(1.945910)  # log 7


def test_capped_logits() -> None:
    """2 tanh(3 / 2) = 1.81030 and 2 tanh(-1) = -1.52319: log(1 + exp(-3.33348)) = 0.03505."""
    weight = torch.tensor([[3.0], [-2.0]])
    loss = linear_cross_entropy(torch.ones(1, 1), weight, torch.tensor([0]), cap=2.0)
    assert loss.item() == pytest.approx(0.03505, abs=1e-5)


@given(
    tokens=st.integers(1, 17), width=st.integers(1, 6), vocabulary=st.integers(1, 9),
    chunk=st.integers(1, 20), ignored=st.floats(0, 0.9), seed=st.integers(0, 99),
    cap=st.none() | st.floats(0.5, 5),
)  # fmt: skip
def test_chunks_equal_the_whole_in_float64(
    tokens: int,
    width: int,
    vocabulary: int,
    chunk: int,
    ignored: float,
    seed: int,
    cap: float | None,
) -> None:
    hidden, weight, targets = inputs(tokens, width, vocabulary, torch.float64, seed)
    targets[1:][torch.rand(tokens - 1) < ignored] = IGNORED
    whole = loss_and_gradients(hidden, weight, targets, None, cap=cap)
    parts = loss_and_gradients(hidden, weight, targets, chunk, cap=cap)
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_chunks_equal_the_whole_in_float32() -> None:
    hidden, weight, targets = inputs(100, 32, 500, torch.float32)
    targets[::7] = IGNORED
    whole = loss_and_gradients(hidden, weight, targets, None)
    parts = loss_and_gradients(hidden, weight, targets, 33)
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@needs_torchs
def test_torchs_own_is_the_same_in_float32() -> None:
    hidden, weight, targets = inputs(100, 32, 500, torch.float32)
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=33, chunking_method=None)
    (3 * F.linear_cross_entropy(hidden, weight, targets, options=options)).backward()
    _, *ours = loss_and_gradients(hidden, weight, targets, 33)
    for theirs, own in zip((hidden.grad, weight.grad), ours, strict=True):
        torch.testing.assert_close(theirs, own, rtol=1e-5, atol=1e-6)


def test_a_wrong_gradient_would_be_found() -> None:
    hidden, weight, targets = inputs(100, 32, 500, torch.float32)
    whole = loss_and_gradients(hidden, weight, targets, None)
    other = loss_and_gradients(hidden, weight, targets.roll(1), 33)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(whole[2], other[2], rtol=1e-5, atol=1e-6)


def test_logits_of_any_size_neither_overflow_nor_vanish() -> None:
    """Scores of 0 and -1e4 in float32: exp underflows, the loss does not."""
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[0.0], [-1e4]])
    for target, expected in ((0, 0.0), (1, 1e4)):
        loss = linear_cross_entropy(hidden, weight, torch.tensor([target]), chunk_tokens=1)
        assert loss.item() == expected


def test_nothing_counted_is_no_number_and_no_gradient_as_in_torch() -> None:
    hidden, weight, targets = inputs(4, 3, 5, torch.float32)
    targets[:] = IGNORED
    for chunk in (None, 2):
        loss, *gradients = loss_and_gradients(hidden, weight, targets, chunk)
        assert loss.isnan()
        assert all(not gradient.any() for gradient in gradients)


@pytest.mark.parametrize("target", [-1, 5])
def test_a_target_outside_the_vocabulary_is_an_error(target: int) -> None:
    hidden, weight, targets = inputs(4, 3, 5, torch.float32)
    targets[2] = target
    for chunk in (None, 2):
        with pytest.raises((IndexError, RuntimeError)):
            linear_cross_entropy(hidden, weight, targets, chunk_tokens=chunk)


def test_under_autocast_products_are_narrow_and_the_weights_gradient_is_wide() -> None:
    hidden, weight, targets = inputs(64, 32, 200, torch.float32)
    exact = loss_and_gradients(hidden, weight, targets, None)
    with torch.autocast("cpu", torch.bfloat16):
        whole = loss_and_gradients(hidden, weight, targets, None)
        parts = loss_and_gradients(hidden, weight, targets, 10)
    assert parts[2].dtype == torch.float32
    for a, b, c in zip(exact, whole, parts, strict=True):
        off = [((tensor - a).norm() / a.norm()).item() for tensor in (b, c)]
        assert 0 < off[1] < max(1.5 * off[0], 1e-3), "not further off than the whole"


def test_without_gradients_none_are_made() -> None:
    hidden, weight, targets = inputs(8, 3, 5, torch.float32)
    with torch.no_grad():
        assert not linear_cross_entropy(hidden, weight, targets, chunk_tokens=3).requires_grad
    loss = linear_cross_entropy(hidden, weight.detach(), targets, chunk_tokens=3)
    loss.backward()
    assert weight.grad is None
    assert hidden.grad is not None


def test_a_second_backward_is_refused_and_not_wrong() -> None:
    hidden, weight, targets = inputs(8, 3, 5, torch.float32)
    loss = 2 * linear_cross_entropy(hidden, weight, targets, chunk_tokens=3)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    hidden, weight, targets = inputs(8, 3, 5, torch.float32)
    loss = 2 * linear_cross_entropy(hidden, weight, targets, chunk_tokens=3)
    (gradient,) = torch.autograd.grad(loss, hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient.sum().backward()


class Largest(TorchDispatchMode):
    """The most elements of any tensor that an operator returns, weights' own shape left out."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.shape, self.elements = weight.shape, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor) and tensor.shape not in (self.shape, self.shape[::-1]):
                self.elements = max(self.elements, tensor.numel())
        return out


@pytest.mark.parametrize(("chunk", "rows"), [(None, 96), (16, 16), (1, 1)])
def test_no_more_than_a_chunks_logits_are_there(chunk: int | None, rows: int) -> None:
    hidden, weight, targets = inputs(96, 4, 1000, torch.float32)
    with Largest(weight) as largest:
        linear_cross_entropy(hidden, weight, targets, chunk_tokens=chunk).backward()
    assert largest.elements == rows * 1000

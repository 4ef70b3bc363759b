"""The norm written for the CPU is torch's own, values and gradients."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from torchtally.train.models.norms import RMSNorm


def test_by_hand() -> None:
    """3 and 4: the mean of 9 and 16 is 12.5."""
    norm = RMSNorm(2, 0.0)
    torch.testing.assert_close(
        norm(torch.tensor([[3.0, 4.0]])), torch.tensor([[3.0, 4.0]]) / 12.5**0.5
    )


@given(
    width=st.integers(1, 9), shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    eps=st.floats(1e-6, 1), seed=st.integers(0, 99),
)  # fmt: skip
def test_it_is_torchs(width: int, shape: list[int], eps: float, seed: int) -> None:
    torch.manual_seed(seed)
    norm = RMSNorm(width, eps).double()
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(*shape, width, dtype=torch.float64, requires_grad=True)
    actual, expected = norm(x), F.rms_norm(x, (width,), norm.weight, eps)
    g = torch.randn_like(x)
    pairs = zip(
        (actual, *torch.autograd.grad(actual, (x, norm.weight), g)),
        (expected, *torch.autograd.grad(expected, (x, norm.weight), g)),
        strict=True,
    )
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_a_row_of_zeros_has_a_gradient() -> None:
    norm, x = RMSNorm(4, 1e-5), torch.zeros(2, 4, requires_grad=True)
    norm(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((2, 4), 1e-5**-0.5))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_numbers_are_summed_in_float32(dtype: torch.dtype) -> None:
    """300 squared is beyond float16."""
    x = torch.full((2, 8), 300.0, dtype=dtype)
    out = RMSNorm(8, 1e-5).to(dtype)(x)
    assert out.dtype == dtype
    torch.testing.assert_close(out, torch.ones_like(x))


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    x = torch.randn(2, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(RMSNorm(4, 1e-5)(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient.sum().backward()


def test_without_a_gradient_for_the_input_none_is_made() -> None:
    norm = RMSNorm(4, 1e-5)
    norm(torch.randn(3, 4)).sum().backward()
    assert norm.weight.grad is not None

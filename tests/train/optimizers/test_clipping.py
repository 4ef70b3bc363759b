"""Clipping against torch.nn.utils, bit for bit, and by hand."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.train.optimizers.pairs import SHAPES, parameters, set_gradients
from torchtally.checkpoints.shards import global_norm
from torchtally.train.step import clip


def with_gradients(
    dtype: torch.dtype, seed: int, without: frozenset[int] = frozenset()
) -> list[nn.Parameter]:
    counted_parameters = parameters(SHAPES, dtype)
    set_gradients(counted_parameters, seed, without=without)
    return counted_parameters


def gradients(trained: Sequence[nn.Parameter]) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in trained]


def assert_same(ours: Sequence[nn.Parameter], theirs: Sequence[nn.Parameter]) -> None:
    for our, their in zip(gradients(ours), gradients(theirs), strict=True):
        assert (our is None) == (their is None)
        assert our is None or their is None or torch.equal(our, their)


DTYPES = st.sampled_from((torch.float32, torch.float64, torch.bfloat16))


def clip_by_norm(trained: Sequence[nn.Parameter], limit: float) -> torch.Tensor:
    """As a step does: the norm is read by the host before the gradients are scaled."""
    norm = global_norm(grad for grad in gradients(trained) if grad is not None)
    clip(trained, norm.item(), limit)
    return norm


@given(
    DTYPES,
    st.integers(0, 99),
    st.floats(0, 20, allow_subnormal=False).filter(lambda limit: not 0 < limit < 1e-30),
    st.frozensets(st.integers(0, 5)),
)
def test_by_norm_is_torchs(
    dtype: torch.dtype, seed: int, limit: float, without: frozenset[int]
) -> None:
    """Bit for bit in float32; elsewhere to the rounding of float32, or of bfloat16 to torch's."""
    ours, theirs = (with_gradients(dtype, seed, without) for _ in range(2))
    assert torch.equal(clip_by_norm(ours, limit), nn.utils.clip_grad_norm_(theirs, limit))
    if dtype == torch.float32:
        assert_same(ours, theirs)
    for our, their in zip(gradients(ours), gradients(theirs), strict=True):
        if our is not None and their is not None:
            tolerance = 2**-6 if dtype == torch.bfloat16 else 2**-20
            torch.testing.assert_close(our, their, rtol=tolerance, atol=0)


def test_gradients_of_two_dtypes() -> None:
    def mixed() -> list[nn.Parameter]:
        return [*with_gradients(torch.float32, 1), *with_gradients(torch.float64, 2),
                *with_gradients(torch.float32, 3)]  # fmt: skip

    ours, theirs = mixed(), mixed()
    assert torch.equal(clip_by_norm(ours, 0.5), nn.utils.clip_grad_norm_(theirs, 0.5))
    for our, their in zip(gradients(ours), gradients(theirs), strict=True):
        torch.testing.assert_close(our, their, rtol=2**-20, atol=0)


def of(*gradients: Sequence[float]) -> list[nn.Parameter]:
    leaves = [nn.Parameter(torch.zeros(len(gradient))) for gradient in gradients]
    for parameter, gradient in zip(leaves, gradients, strict=True):
        parameter.grad = torch.tensor(gradient)
    return leaves


def test_by_hand() -> None:
    """|(3, 4, 12)| = 13: above 6.5 it is halved, below 26 it is left."""
    trained = of([3.0, 4.0], [12.0])
    assert clip_by_norm(trained, 26.0).item() == 13.0
    assert [parameter.grad.tolist() for parameter in trained if parameter.grad is not None] == [
        [3.0, 4.0],
        [12.0],
    ]
    assert clip_by_norm(trained, 6.5).item() == 13.0
    assert global_norm(
        [parameter.grad for parameter in trained if parameter.grad is not None]
    ).item() == pytest.approx(6.5)


def test_the_norm_of_nothing_is_zero() -> None:
    assert global_norm([]).item() == 0.0
    assert clip_by_norm([], 1.0).item() == 0.0
    assert clip_by_norm(parameters(), 1.0).item() == 0.0
    assert global_norm([torch.zeros(0, 3)]).item() == 0.0


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_in_the_norm(wrong: float) -> None:
    trained = of([1.0], [1.0, wrong], [2.0])
    norm = clip_by_norm(trained, 1.0)
    first = trained[0].grad
    assert first is not None
    assert not norm.isfinite()
    assert first.item() == 0.0 or first.isnan()

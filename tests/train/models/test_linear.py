"""Outputs of the same scale at every width, and nothing beyond three standard deviations."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchtally.train.models.linear import Embedding, Linear, fill_normal

CUT_SHARE = 0.98658
"""Standard deviation left when a normal is cut at 3: sqrt(1 - 6 phi(3) / (2 Phi(3) - 1))."""


def test_what_the_cut_leaves() -> None:
    phi = math.exp(-4.5) / math.sqrt(2 * math.pi)
    inside = math.erf(3 / math.sqrt(2))
    assert math.sqrt(1 - 6 * phi / inside) == pytest.approx(CUT_SHARE, abs=1e-5)


@pytest.mark.parametrize("width", [64, 256, 1024, 4096, 16384])
def test_the_scale_of_outputs_does_not_depend_on_the_width(width: int) -> None:
    torch.manual_seed(0)
    outputs = Linear(width, 128)(torch.randn(128, width)).detach()
    assert outputs.std().item() == pytest.approx(CUT_SHARE, rel=0.04)
    assert outputs.mean().item() == pytest.approx(0, abs=0.05)


def test_unscaled_outputs_would_grow() -> None:
    """The checker fails where it should: randn(16384, 32) gives outputs near sqrt(16384) = 128."""
    torch.manual_seed(0)
    outputs = torch.randn(64, 16384) @ torch.randn(16384, 32)
    assert outputs.std().item() == pytest.approx(128, rel=0.1)


@given(width=st.integers(1, 600), gain=st.floats(0.01, 4), seed=st.integers(0, 100))
def test_nothing_is_beyond_three_standard_deviations(width: int, gain: float, seed: int) -> None:
    torch.manual_seed(seed)
    weight = Linear(width, 8, gain=gain).weight
    assert weight.abs().max().item() <= 3 * gain / math.sqrt(width) * (1 + 1e-6)


def test_the_cut_cuts() -> None:
    """Of a million numbers about 2700 would be beyond three; none is, and some are near."""
    torch.manual_seed(0)
    weight = torch.empty(1000, 1000)
    fill_normal(weight, 0.02)
    assert 0.0597 < weight.abs().max().item() <= 0.06 * (1 + 1e-6)
    assert weight.std().item() == pytest.approx(0.02 * CUT_SHARE, rel=0.01)


def test_a_narrow_dtype_is_a_float32_draw_rounded() -> None:
    wide, narrow = torch.empty(64, 64), torch.empty(64, 64, dtype=torch.bfloat16)
    for weight in (wide, narrow):
        torch.manual_seed(1)
        fill_normal(weight, 0.1)
    assert torch.equal(wide.bfloat16(), narrow)


def test_shape_and_bias() -> None:
    layer = Linear(3, 5, has_bias=True)
    assert layer.weight.shape == (5, 3)
    assert torch.equal(layer.bias, torch.zeros(5))
    assert Linear(3, 5).bias is None
    x = torch.randn(2, 7, 3)
    assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


def test_rows_of_an_embedding_have_length_one() -> None:
    torch.manual_seed(0)
    rows = Embedding(1000, 512).weight.detach().norm(dim=1)
    assert rows.mean().item() == pytest.approx(CUT_SHARE, rel=0.01)

"""Angles of rotary positions, as they stand in tables, by hand."""

import math

import pytest
import torch

from torchtally.train.models.config import RopeStretch
from torchtally.train.models.rotary import Rotary, stretch_rates


def test_angles_by_hand() -> None:
    """Two pairs, theta 100: the first turns a radian a position, the second a tenth."""
    rotary = Rotary(4, 3, 100.0)
    expected = torch.tensor([[0.0, 0.0], [1.0, 0.1], [2.0, 0.2]])
    torch.testing.assert_close(rotary.cos, expected.cos())
    torch.testing.assert_close(rotary.sin, expected.sin())


def test_a_quarter_turn() -> None:
    """The pair (1, 0) turned by pi / 2 is (0, 1); at position 0 it stays."""
    rotary = Rotary(2, 2, 10.0)
    rotary.cos[1], rotary.sin[1] = 0.0, 1.0
    x = torch.tensor([1.0, 0.0]).expand(1, 2, 1, 2)
    torch.testing.assert_close(rotary(x)[0, :, 0], torch.tensor([[1.0, 0.0], [0.0, 1.0]]))


def test_turning_changes_no_length_and_scores_depend_on_distance_alone() -> None:
    torch.manual_seed(0)
    rotary, (q, k) = Rotary(16, 32, 10_000.0), torch.randn(2, 16)
    at = rotary(torch.stack([q, k]).expand(1, 32, 2, 16))[0]
    torch.testing.assert_close(at[:, 0].norm(dim=-1), q.norm().expand(32))
    scores = at[:, 0] @ at[:, 1].T
    for distance in (0, 3, 11):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)


def test_a_stretch_slows_what_turns_slowly() -> None:
    """Turns in 100 tokens: from 4 on none is slowed, up to 1 all are, by 10."""
    turns = torch.tensor([8.0, 4.0, 2.5, 1.0, 0.5])
    rates = turns * 2 * math.pi / 100
    slowed = stretch_rates(rates, RopeStretch(factor=10.0, original_context=100))
    shares = (slowed / rates).tolist()
    assert shares == pytest.approx([1, 1, (1 + 0.1) / 2, 0.1, 0.1])

"""The checks of shapes that `tests/train/conftest.py` puts in place are in place."""

import pytest
import torch
from jaxtyping import TypeCheckError

from torchtally.train.models.attention import attend
from torchtally.train.models.cruncher import Cruncher


def test_a_wrong_rank_is_found() -> None:
    with pytest.raises(TypeCheckError):
        Cruncher(4, 1)(torch.zeros(2, 3, 4))


def test_a_wrong_dtype_is_found() -> None:
    ids = torch.zeros(1, 2, 3, 4, dtype=torch.int64)
    with pytest.raises(TypeCheckError):
        attend(ids, ids, ids, None, 0.0, True)


def test_sizes_that_do_not_agree_are_found() -> None:
    q, k = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 5, 4)
    with pytest.raises(TypeCheckError):
        attend(q, k, k[:, :, 1:], None, 0.0, True)

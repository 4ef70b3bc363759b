"""Chips of which what fits cannot be said are refused, with the reason."""

import pytest

from torchtally.chips import chip
from torchtally.errors import UsageError
from torchtally.fit.chips import Margin, search_of
from torchtally.fit.search import Values


@pytest.mark.parametrize(
    ("name", "reason"),
    [("MI300X", "ROCm's libraries take besides tensors"), ("TPU-v5p", "not a CUDA device")],
)
def test_what_fits_them_is_unknown(name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        search_of(chip(name), Values(), Margin())

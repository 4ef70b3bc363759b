"""What `torch.utils.flop_counter` can count, asked of it: releases differ."""

import pytest
from torch.utils.flop_counter import sdpa_flop_count


def need_grouped_queries() -> None:
    """Skip a test on a torch whose counter refuses attention with fewer heads of keys."""
    try:
        sdpa_flop_count((1, 2, 8, 8), (1, 1, 8, 8), (1, 1, 8, 8))
    except AssertionError as error:
        pytest.skip(f"torch's counter cannot count it: {error}")

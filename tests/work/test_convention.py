"""The causal convention halves what a literal says is causal, and nothing else."""

import pytest

from tests.builders import attention_call, mm_call
from torchtally.work import Cost, Kind
from torchtally.work.convention import Attention, conventional

COST = Cost(flops=100, bytes_read=10, bytes_written=5)


@pytest.mark.parametrize(
    ("attention", "is_causal", "flops"),
    [
        (Attention.FULL, True, 100),
        (Attention.FULL, False, 100),
        (Attention.CAUSAL, True, 50),
        (Attention.CAUSAL, False, 100),
    ],
)
def test_only_causal_attention_is_halved(attention: Attention, is_causal: bool, flops: int) -> None:
    cost = conventional(COST, attention_call(is_causal), Kind.ATTENTION, attention)
    assert cost == Cost(flops=flops, bytes_read=10, bytes_written=5)


def test_a_product_is_never_halved() -> None:
    assert conventional(COST, mm_call(1, 1, 1), Kind.PRODUCT, Attention.CAUSAL) == COST

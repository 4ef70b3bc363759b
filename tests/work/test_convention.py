"""The causal convention halves what a literal says is causal, and nothing else."""

import pytest

from tests.builders import attention_call, mm_call
from torchtally.work import Cost, Kind
from torchtally.work.convention import Convention, apply_convention

COST = Cost(flops=100, bytes_read=10, bytes_written=5)


@pytest.mark.parametrize(
    ("convention", "is_causal", "flops"),
    [
        (Convention.FULL, True, 100),
        (Convention.FULL, False, 100),
        (Convention.CAUSAL, True, 50),
        (Convention.CAUSAL, False, 100),
    ],
)
def test_only_causal_attention_is_halved(
    convention: Convention, is_causal: bool, flops: int
) -> None:
    cost = apply_convention(COST, attention_call(is_causal), Kind.ATTENTION, convention)
    assert cost == Cost(flops=flops, bytes_read=10, bytes_written=5)


def test_a_product_is_never_halved() -> None:
    assert apply_convention(COST, mm_call(1, 1, 1), Kind.PRODUCT, Convention.CAUSAL) == COST

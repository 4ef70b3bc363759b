"""FBGEMM's products, by the arguments of its schemas."""

import pytest

from tests.work.calls import call, given
from torchtally.work import Kind, cost_of

M, N, K, G = 64, 32, 16, 4


@pytest.mark.parametrize("name", ["f8f8bf16", "f8f8bf16_rowwise", "f8f8bf16_blockwise"])
def test_a_product_of_float8(name: str) -> None:
    operands = [given("XQ", M, K, dtype="float8_e4m3fn"), given("WQ", N, K, dtype="float8_e4m3fn")]
    kind, cost = cost_of(call(f"fbgemm.{name}", operands, (M, N)))
    assert (kind, cost.flops) == (Kind.PRODUCT, 2 * M * N * K)
    assert cost.bytes_read == M * K + N * K


def test_rows_of_groups_meet_the_weights_of_their_own_group() -> None:
    """64 rows in four groups, each with a matrix of its own."""
    operands = [given("X", M, K), given("W", G, N, K), given("M_sizes", G, dtype="int64")]
    _, cost = cost_of(call("fbgemm.bf16bf16bf16_grouped_stacked", operands, (M, N)))
    assert cost.flops == 2 * M * N * K


def test_packed_numbers_of_4_bits() -> None:
    operands = [given("XQ", M, K // 2, dtype="uint8"), given("WQ", N, K // 2, dtype="uint8")]
    _, cost = cost_of(call("fbgemm.f4f4bf16", operands, (M, N)))
    assert cost.flops == 2 * M * N * K


def test_quantising_rows() -> None:
    kind, cost = cost_of(call("fbgemm.quantize_fp8_per_row", [given("input", M, K)], (M, K), (M,)))
    assert (kind, cost.flops) == (Kind.ELEMENTWISE, 3 * M * K)

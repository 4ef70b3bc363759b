"""Products with 2:4 sparse weights against published kernels, and by hand."""

from statistics import median

import pytest

from torchtally.chips import chip
from torchtally.errors import UsageError
from torchtally.timing.roofline.products import Product
from torchtally.timing.roofline.sparse import (
    can_be_sparse,
    check_sparse_rates,
    compressed_bytes,
    sparse_product_s,
    sparse_share,
)

PUBLISHED_US = {
    "A100-PCIe": (
        184.8, 719.3, 311.1, 1811.9, 443.3, 1127.3, 715.5, 3006.1, 594.1, 2963.8, 746.6, 8239.6,
        1142.8, 3068.2, 1697.9, 8623.6,
    ),
    "H100-PCIe": (
        101.0, 384.1, 148.2, 788.8, 215.5, 575.5, 345.1, 1201.7, 300.3, 1759.7, 381.4, 3707.2,
        617.5, 1699.7, 874.9, 3668.2,
    ),
    "B200": (
        32.4, 113.8, 46.6, 215.0, 64.8, 166.7, 102.9, 303.5, 86.1, 429.4, 102.4, 845.9, 163.2,
        437.7, 222.3, 869.6,
    ),
    "RTX-4090": (
        223.5, 848.0, 339.5, 1860.0, 487.4, 1266.5, 822.2, 2663.7, 652.6, 3435.8, 844.4, 11555.9,
        1329.1, 3593.1, 1855.5, 10827.5,
    ),
}  # fmt: skip
"""cuSPARSELt on 8192 tokens in bfloat16, 2:4, the best algorithm of a search: bcacdwk/vllmbench
@92a8ca4, slidesparse/benchmark_kernel/cuSPARSELt. None of them is in SPARSE_SHARES."""
SIDES = (
    (2048, 2048), (2048, 8192), (3072, 2048), (16384, 2048), (3072, 3072), (3072, 8192),
    (5120, 3072), (16384, 3072), (3584, 3584), (3584, 18944), (4608, 3584), (37888, 3584),
    (5120, 5120), (5120, 13824), (7168, 5120), (27648, 5120),
)  # fmt: skip
"""(N, K) of the weights of Llama 3.2 1B and 3B, Qwen 2.5 7B and 14B."""


def product(M: int, N: int, K: int, dtype: str = "bfloat16", batch: int = 1) -> Product:
    return Product(batch, M, N, K, dtype, 2)


def dense_bytes(M: int, N: int, K: int) -> int:
    return 2 * (M * K + K * N + M * N)


def errors(name: str) -> list[float]:
    found = []
    for (N, K), published_us in zip(SIDES, PUBLISHED_US[name], strict=True):
        predicted_s = sparse_product_s(product(8192, N, K), dense_bytes(8192, N, K), chip(name))
        assert predicted_s is not None
        found.append(abs(predicted_s * 1e6 / published_us - 1))
    return found


@pytest.mark.parametrize("name", PUBLISHED_US)
def test_products_of_language_models_are_within_15_percent(name: str) -> None:
    """In the median 3 to 8 %, and all but two of sixteen: on an RTX 4090 those wider than 27,000,
    on Hopper those of 16,384.
    """
    found = errors(name)
    assert median(found) < 0.08
    assert sum(error <= 0.15 for error in found) >= 14


def test_the_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the sparse peak itself every product is far off."""
    shares = {"A100": ((4096, 1.0),)}
    monkeypatch.setattr("torchtally.timing.roofline.sparse.SPARSE_SHARES", shares)
    assert sum(error <= 0.15 for error in errors("A100-PCIe")) == 0


def test_a_compressed_weight_by_hand() -> None:
    """Of 4 numbers in 16 bits two stay, and two bits for each place: 36 of 64 bits."""
    assert compressed_bytes(64, 2) == 64 * 2 * 36 // 64
    assert compressed_bytes(64, 1) == 64 * 20 // 32


def test_what_libraries_have_a_kernel_for() -> None:
    assert can_be_sparse(product(7, 16, 32))
    assert not can_be_sparse(product(7, 24, 32))
    assert not can_be_sparse(product(7, 16, 40))
    assert not can_be_sparse(product(7, 16, 32, "float32"))
    assert not can_be_sparse(product(7, 16, 32, batch=2))


def test_shares_between_two_sizes() -> None:
    """8192 is halfway from 4096 to 16384 on a logarithmic scale, and has a row of its own."""
    a100 = chip("A100-SXM")
    assert sparse_share(100, a100) == sparse_share(4096, a100) == 0.643
    assert sparse_share(8192, a100) == 0.562
    assert sparse_share(10**6, a100) == 0.434
    half = sparse_share(11585, a100)  # 8192 times the root of 2
    assert half == pytest.approx((0.562 + 0.451) / 2, abs=1e-4)


def test_chips_without_published_rates() -> None:
    assert sparse_product_s(product(8192, 4096, 4096), 1, chip("MI300X")) is None
    with pytest.raises(UsageError, match="no rates of such products are known of T4"):
        check_sparse_rates(chip("T4"))

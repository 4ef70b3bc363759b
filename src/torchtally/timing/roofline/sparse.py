"""Products with a weight of which two of each four numbers are zero (2:4 sparsity).

M, K, N: (M, K) @ (K, N), the second operand a weight that is stored compressed along K: two values
of four, and two bits for the place of each. Tensor cores since Ampere then do half of the work.
"""

from math import log

from torchtally.chips import Chip
from torchtally.errors import UsageError
from torchtally.timing.constants import KERNEL_S, SPARSE_SHARES
from torchtally.timing.roofline.products import Product
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s

KEPT, PLACE_BITS = 0.5, 2
"""Of the numbers, and bits for the place of each that is kept."""
SIXTEEN_BITS = ("bfloat16", "float16")
"""Dtypes of which rates are published."""
MEASURED_ON = {"Ampere GA100": "A100", "Hopper GH100": "H100", "Blackwell": "B200",
               "Ada AD102": "RTX_4090"}  # fmt: skip
"""The chip of each architecture of which rates are published."""
MULTIPLE = 16
"""Sides of a 16-bit weight must be multiples of it (torch/sparse/semi_structured.py)."""


def compressed_bytes(elements: int, itemsize_bytes: int) -> int:
    """Bytes of a 2:4 weight: 9/16 of a dense one in 16 bits."""
    kept = int(elements * KEPT)
    return kept * itemsize_bytes + kept * PLACE_BITS // 8


def can_be_sparse(product: Product) -> bool:
    """Libraries have a kernel for it: one matrix of 16-bit numbers with sides they take."""
    is_whole = product.K % MULTIPLE == 0 and product.N % MULTIPLE == 0
    return product.dtype in SIXTEEN_BITS and product.batch == 1 and is_whole


def sparse_share(columns: int, chip: Chip) -> float | None:
    """Share of the sparse peak that is reached; None of a chip of which nothing is published."""
    points = SPARSE_SHARES.get(MEASURED_ON.get(chip.architecture, ""))
    if not points:
        return None
    below = max((point for point in points if point[0] <= columns), default=points[0])
    above = min((point for point in points if point[0] >= columns), default=points[-1])
    if above[0] <= below[0]:
        return below[1]
    way = log(columns / below[0]) / log(above[0] / below[0])
    return below[1] + way * (above[1] - below[1])


def check_sparse_rates(chip: Chip) -> None:
    """Raises UsageError for a chip of which no 2:4 rates are published."""
    if sparse_share(1, chip) is None:
        raise UsageError(
            f"sparsity 2:4: no rates of such products are known of {chip.name}. Name an A100, "
            "H100, H200, B200 or RTX-4090, as --gpu A100-SXM."
        )


def sparse_product_s(product: Product, moved_bytes: int, chip: Chip) -> float | None:
    """Seconds of a product whose weight is 2:4 sparse, `moved_bytes` those of the dense one.

    None where no rate is published for the chip, or libraries have no kernel for the product.
    """
    peak = chip.peaks.get(product.dtype)
    share = sparse_share(product.N, chip)
    if peak is None or share is None or not can_be_sparse(product):
        return None
    weight = product.K * product.N
    saved_bytes = weight * product.itemsize_bytes - compressed_bytes(weight, product.itemsize_bytes)
    compute_s = product.flops / (2 * peak.flop_per_s * share)
    memory_s = (moved_bytes - saved_bytes) / bandwidth_bytes_per_s(chip)
    return max(compute_s, memory_s) + KERNEL_S

"""Scans of recurrences on one chip: by their products or by their bytes, whatever takes longer.

An estimate: chunks are small products, at the rate that fused attention reaches;
no published table of scans is held against it.
"""

from torchtally.chips import Chip
from torchtally.plan.closed_form import (
    BytePerS,
    Bytes,
    Count,
    FlopPerS,
    Flops,
    Seconds,
    closed_form,
)
from torchtally.plan.mixers.base import Recurrence
from torchtally.plan.quantity import Quantity
from torchtally.timing.constants import KERNEL_S
from torchtally.timing.roofline.attention import Fused, shares_of
from torchtally.timing.roofline.rates import peak_of
from torchtally.units import Unit

FORWARD_KERNELS, BACKWARD_KERNELS = 6, 12
"""Of mamba_ssm's and flash-linear-attention's chunked scans with their convolution."""
BACKWARD_FLOPS, BACKWARD_BYTES = 3, 3
"""To forward's: two products for each, and the forward scan repeated, operands read with it."""


def scan_s(
    recurrence: Recurrence, tokens: int, sequence: int, split: int, chip: Chip, dtype: str,
    size_bytes: int, bandwidth_bytes_per_s: float, *, is_backward: bool = False,
) -> Quantity:  # fmt: skip
    """Seconds of one layer, of a chip's share of heads."""
    flops = recurrence.scan_flops(sequence).value * tokens / split
    moved = recurrence.accesses * size_bytes * tokens / split
    share = shares_of(Fused.FLASH, dtype, chip)
    rate = (share.backward if is_backward else share.forward) * peak_of(dtype, chip).flop_per_s
    if is_backward:
        flops, moved = BACKWARD_FLOPS * flops, BACKWARD_BYTES * moved
    kernels = BACKWARD_KERNELS if is_backward else FORWARD_KERNELS
    return _scan_s(round(flops), rate, round(moved), bandwidth_bytes_per_s, kernels)


@closed_form("recurrence", Unit.SECONDS, "estimated: the slower of products and bytes of the scan")
def _scan_s(
    flops: Flops,
    flop_per_s: FlopPerS,
    moved: Bytes,
    bandwidth_bytes_per_s: BytePerS,
    kernels: Count,
    kernel_s: Seconds = KERNEL_S,
) -> str:
    return "max(flops / flop_per_s, moved / bandwidth_bytes_per_s) + kernels * kernel_s"

"""Scaled dot-product attention: blocks of queries on multiprocessors, at published shares of peak.

B: batch.  H: heads.  S: queries.  T: keys.  D, E: head dims of keys and of values.

A fused kernel gives a block of 128 queries of one head to one multiprocessor, which goes over the
keys (backward: a block of keys goes over the queries): B * H * S / 128 blocks in waves. Its rate on
long sequences is published as a share of the promised peak, by kernel and generation of the chip.

A kernel skips blocks that its geometry masks altogether, whatever a convention says of the FLOPs:
of a causal square it computes half, and the blocks on the diagonal (`work/geometry.py`). The plain
products of the math path compute everything, as every kernel does that is given a mask as a tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from itertools import product
from math import ceil

from torchtally.chips import Chip
from torchtally.chips.capabilities import AMPERE_AND_ADA, DATA_CENTER_BLACKWELL
from torchtally.timing.constants import (
    AMPERE_SHARES,
    AROUND_BACKWARD_BYTES,
    BLACKWELL_NATIVE_SHARES,
    BLACKWELL_NATIVE_SPECIALS,
    BLACKWELL_SHARES,
    BLACKWELL_ULTRA_NATIVE_SHARES,
    BLACKWELL_ULTRA_NATIVE_SPECIALS,
    CLOCK_HZ,
    EFFICIENT_BLOCK,
    EFFICIENT_FLOAT32_PRODUCTS,
    EFFICIENT_OF_FLASH_SHARES,
    EFFICIENT_ON_HOPPER_SHARES,
    FIRST_BLOCK_S,
    FIRST_OF_FLASH_SHARES,
    FLASH_BLOCK,
    FLEX_OF_FLASH_SHARES,
    HALVED_GAIN,
    HEAD_DIMS,
    HOPPER_NATIVE_DROP_SPECIALS,
    HOPPER_NATIVE_SHARES,
    HOPPER_NATIVE_SPECIALS,
    HOPPER_SHARES,
    KERNEL_S,
    SCORE_PASSES,
    SPECIAL_PER_CLOCK,
)
from torchtally.timing.roofline.kernel import Kernel
from torchtally.timing.roofline.launches import attention_launches, fused_attention_launches
from torchtally.timing.roofline.limits import bound_kernel
from torchtally.timing.roofline.products import Product, product_dtype, product_s
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s, peak_of
from torchtally.timing.roofline.sustained import is_halved
from torchtally.trace import Call
from torchtally.work import Cost
from torchtally.work.attention import heads_of_call
from torchtally.work.geometry import Counted, Geometry


class Fused(StrEnum):
    FLASH = "flash"
    FLASH_1 = "flash_1"
    FLASH_3 = "flash_3"
    EFFICIENT = "efficient"
    CUDNN = "cudnn"
    FLEX = "flex"


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of the promised peak that attention reaches on long sequences."""

    forward: float
    backward: float
    forward_specials: float = 0.0
    """Special functions (an exponential and what else takes as long) for each score, while no
    product is computed."""
    backward_specials: float = 0.0
    forward_drop_specials: float = 0.0
    """Besides, where it is drawn which scores are dropped."""
    backward_drop_specials: float = 0.0

    def specials(self, *, is_backward: bool, drops: bool) -> float:
        """Special functions for each score of a pass."""
        if is_backward:
            return self.backward_specials + drops * self.backward_drop_specials
        return self.forward_specials + drops * self.forward_drop_specials


AMPERE, HOPPER, BLACKWELL = (
    Shares(*AMPERE_SHARES),
    Shares(*HOPPER_SHARES),
    Shares(*BLACKWELL_SHARES),
)
HOPPER_NATIVE = Shares(*HOPPER_NATIVE_SHARES, *HOPPER_NATIVE_SPECIALS, *HOPPER_NATIVE_DROP_SPECIALS)
BLACKWELL_NATIVE = Shares(*BLACKWELL_NATIVE_SHARES, *BLACKWELL_NATIVE_SPECIALS)
BLACKWELL_ULTRA_NATIVE = Shares(*BLACKWELL_ULTRA_NATIVE_SHARES, *BLACKWELL_ULTRA_NATIVE_SPECIALS)


SHARES: dict[tuple[Fused, str], Shares] = {
    **dict.fromkeys(product((Fused.FLASH, Fused.CUDNN), ("GB20x", "GB20B")), AMPERE),
    **dict.fromkeys(product((Fused.FLASH, Fused.FLASH_3, Fused.CUDNN), AMPERE_AND_ADA), AMPERE),
    (Fused.FLASH, "GH100"): HOPPER,
    (Fused.FLASH_3, "GH100"): HOPPER_NATIVE,
    (Fused.CUDNN, "GH100"): HOPPER_NATIVE,
    **dict.fromkeys(product((Fused.FLASH,), DATA_CENTER_BLACKWELL), BLACKWELL),
    **dict.fromkeys(product((Fused.CUDNN,), DATA_CENTER_BLACKWELL), BLACKWELL_NATIVE),
    (Fused.CUDNN, "GB110"): BLACKWELL_ULTRA_NATIVE,
}
"""By the design of the chip's dies."""

OF_FLASH = {
    Fused.FLASH_1: Shares(*FIRST_OF_FLASH_SHARES),
    Fused.EFFICIENT: Shares(*EFFICIENT_OF_FLASH_SHARES),
    Fused.FLEX: Shares(*FLEX_OF_FLASH_SHARES),
}


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """So many heads, each of S queries and T keys."""

    heads: int | Fraction
    S: int
    T: int
    D: int
    E: int
    geometry: Geometry | Counted
    """Of a whole sequence: of its S * T points, a chip that has some of the queries computes the
    same share."""
    is_backward: bool
    drops: bool = False
    """Some of the weights, by chance."""


def attention_kernel(call: Call, cost: Cost, chip: Chip) -> Kernel:
    """Fused kernels by blocks; the math path and whole layers as products and passes over bytes."""
    kernel, shapes = fused_of(call), shapes_of(call)
    if kernel is None or not shapes:
        return unfused_kernel(call, cost, chip)
    return fused_kernel(shapes, call.tensor("query").dtype, kernel, cost.bytes, chip)


def fused_kernel(
    shapes: Sequence[AttentionShape], dtype: str, kernel: Fused, operand_bytes: int, chip: Chip
) -> Kernel:
    """One pass of a fused kernel, whose operands and results are so many bytes."""
    # A program of flex's backward has its queries to itself: it adds to no accumulator.
    accumulated = 0 if kernel is Fused.FLEX else sum(map(query_gradient_bytes, shapes))
    is_backward = any(shape.is_backward for shape in shapes)
    launches = fused_attention_launches(dtype, kernel, is_backward=is_backward)
    bandwidth = bandwidth_bytes_per_s(chip)
    around_s = around_bytes(shapes, kernel) / bandwidth
    return bound_kernel(
        compute_s=fused_s(shapes, dtype, kernel, chip) + around_s,
        memory_s=(operand_bytes + accumulated) / bandwidth + around_s,
        overhead_s=KERNEL_S * launches + FIRST_BLOCK_S,
    )


def around_bytes(shapes: Sequence[AttentionShape], kernel: Fused) -> float:
    """Bytes of queries and results that move while nothing is multiplied: forward a block reads its
    queries before, and writes its result behind.
    """
    if kernel not in (Fused.FLASH, Fused.FLASH_3, Fused.CUDNN):
        return 0.0
    return float(sum(shape.heads * shape.S * around_row_bytes(shape) for shape in shapes))


def around_row_bytes(shape: AttentionShape) -> float:
    """Bytes of one query of one head, in half precision."""
    return AROUND_BACKWARD_BYTES * shape.D if shape.is_backward else 2 * (shape.D + shape.E)


def fused_of(call: Call) -> Fused | None:
    if "flex" in call.name:
        return Fused.FLEX
    if call.name.startswith("flash_attn_3"):
        return Fused.FLASH_3
    if "flash" in call.name or "varlen" in call.name or "overrideable" in call.name:
        return Fused.FLASH
    if "efficient" in call.name:
        return Fused.EFFICIENT
    return Fused.CUDNN if "cudnn" in call.name else None


def shapes_of(call: Call) -> tuple[AttentionShape, ...]:
    """The shapes behind a call: one, but for packed sequences of known lengths."""
    heads = heads_of_call(call)
    if heads is None or not all(map(call.tensors, ("query", "key", "value"))):
        return ()
    D, E = call.tensor("query").shape[-1], call.tensor("value").shape[-1]
    is_backward, drops = "backward" in call.name, call.literal("drops") is True
    return tuple(
        AttentionShape(times, geometry.queries, geometry.keys, D, E, geometry, is_backward, drops)
        for geometry, times in heads.items()
    )


def shares_of(kernel: Fused, dtype: str, chip: Chip) -> Shares:
    if kernel is Fused.EFFICIENT and chip.sm.has_wgmma and dtype != "float32":
        return Shares(*EFFICIENT_ON_HOPPER_SHARES)
    gain = HALVED_GAIN if is_halved(dtype, chip) else 1
    of_flash = OF_FLASH.get(kernel, Shares(1.0, 1.0))
    native = Fused.FLASH if kernel in OF_FLASH else kernel
    shares = SHARES.get((native, chip.sm.design), HOPPER)
    return Shares(
        min(1.0, gain * of_flash.forward * shares.forward),
        min(1.0, gain * of_flash.backward * shares.backward),
        shares.forward_specials,
        shares.backward_specials,
        shares.forward_drop_specials,
        shares.backward_drop_specials,
    )


def attention_peak_flop_per_s(dtype: str, kernel: Fused, chip: Chip) -> float:
    """The promised rate of the instructions that the kernel uses."""
    promised = peak_of(dtype, chip).flop_per_s
    if kernel is Fused.EFFICIENT and dtype == "float32" and "tf32" in chip.peaks:
        split = chip.peaks["tf32"].flop_per_s / EFFICIENT_FLOAT32_PRODUCTS
        return max(promised, split)
    return promised


def fused_s(shapes: Sequence[AttentionShape], dtype: str, kernel: Fused, chip: Chip) -> float:
    """Waves of whole blocks, each preceded by the time of one block of the inner loop."""
    shares = shares_of(kernel, dtype, chip)
    is_backward = any(shape.is_backward for shape in shapes)
    share = shares.backward if is_backward else shares.forward
    rate = share * attention_peak_flop_per_s(dtype, kernel, chip)
    size = EFFICIENT_BLOCK if kernel is Fused.EFFICIENT else FLASH_BLOCK
    blocks = sum(blocks_of(shape, size) for shape in shapes)
    flops = sum(blocks_of(shape, size) * block_flops(shape, size) for shape in shapes)
    if chip.multiprocessors is None or not blocks:
        return float(flops) / rate
    scores = sum(blocks_of(shape, size) * block_scores(shape, size) for shape in shapes)
    specials = shares.specials(is_backward=is_backward, drops=any(shape.drops for shape in shapes))
    special_per_s = SPECIAL_PER_CLOCK * chip.multiprocessors * (chip.boost_clock_hz or CLOCK_HZ)
    waves = ceil(blocks / chip.multiprocessors)
    whole = waves * chip.multiprocessors / blocks
    return float(whole * (flops / rate + scores * specials / special_per_s))


def blocks_of(shape: AttentionShape, size: int) -> int:
    """Blocks of queries, each on a multiprocessor; backward of keys."""
    return ceil(shape.heads * ceil((shape.T if shape.is_backward else shape.S) / size))


def block_flops(shape: AttentionShape, size: int) -> float:
    """FLOPs of one block."""
    D, E = padded_head(shape.D), padded_head(shape.E)
    return block_scores(shape, size) * 2 * ((3 * D + 2 * E) if shape.is_backward else (D + E))


def block_scores(shape: AttentionShape, size: int) -> float:
    """It meets as many blocks of the others as are not masked, and one more."""
    inner = shape.S if shape.is_backward else shape.T
    return size * (ceil(inner / size) * shape.geometry.computed_share(size) + 1) * size


def padded_head(size: int) -> int:
    return next((padded for padded in HEAD_DIMS if size <= padded), size)


def query_gradient_bytes(shape: AttentionShape) -> int:
    """Gradients of the queries in float32: set to zero, added to, and read to be converted."""
    return ceil(3 * 4 * shape.heads * shape.S * shape.D) if shape.is_backward else 0


def unfused_kernel(call: Call, cost: Cost, chip: Chip) -> Kernel:
    """Products at a product's rate and the scores moved between them; causal or not."""
    shapes = shapes_of(call)
    query = call.inputs[0]
    dtype, itemsize_bytes = product_dtype(call, query)
    if not shapes:
        rows = max(1, query.elements // max(1, query.shape[-1]))
        columns = max(1, query.shape[-1])
        K = max(1, cost.flops // (2 * rows * columns))
        compute_s, _ = product_s(Product(1, rows, columns, K, dtype, itemsize_bytes), chip)
        score_bytes = 0
    else:
        (shape,) = shapes
        heads = int(shape.heads)
        first = Product(heads, shape.S, shape.T, shape.D, dtype, itemsize_bytes)
        second = Product(heads, shape.S, shape.E, shape.T, dtype, itemsize_bytes)
        compute_s = product_s(first, chip)[0] + product_s(second, chip)[0]
        score_bytes = SCORE_PASSES * heads * shape.S * shape.T * itemsize_bytes
    bandwidth = bandwidth_bytes_per_s(chip)
    # The passes over the scores come between the products: they do not overlap.
    return bound_kernel(
        compute_s=compute_s + score_bytes / bandwidth,
        memory_s=cost.bytes / bandwidth,
        overhead_s=KERNEL_S * attention_launches(call),
    )

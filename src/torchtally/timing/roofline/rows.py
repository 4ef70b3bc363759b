"""Softmax and layer norm by rows: which of PyTorch's kernels runs, and how often it reads.

A softmax (aten/src/ATen/native/cuda/SoftMax.cu, PersistentSoftmax.cuh)

- of rows of up to 2048 elements and 8 KiB gives each to a warp, which keeps it in registers;
- of longer ones to a block, which keeps it in shared memory, where it fits and begins on 16 bytes;
- of others, as where rows begin off 16 bytes, to a block that reads it for the maximum, for the sum
  and for the result: again from the cache, where it stays.

A layer norm (layer_norm_kernel.cu) gives each row to a block of 128 threads, which reads it for its
moments and again for the result. The second read finds it in a cache while all the rows that are
worked on fit there.
"""

from dataclasses import dataclass
from math import ceil

from torchtally.chips import Chip
from torchtally.timing.constants import (
    BLOCKS_OF_1024,
    CLOCK_HZ,
    LONG_ROW_BYTES_PER_S,
    LONG_ROW_S,
    NORM_FIRST_S,
    NORM_ROW_S,
    NORM_THREADS,
    ON_CHIP_ROW_BYTES,
    ROWS_BYTES_PER_S_BEFORE_AMPERE,
    ROWS_BYTES_PER_S_SINCE_AMPERE,
    SHARED_CACHE,
    SPLIT_ABOVE_ROWS,
    VECTOR_BYTES,
    WARP_BYTES,
    WARP_ELEMENTS,
    WARP_SLOTS_PER_S,
    WEIGHT_COLUMNS,
    WEIGHT_ROWS,
    WEIGHT_ROWS_S,
)
from torchtally.timing.roofline.composed import Formula, composed
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s, normalization_bytes_per_s
from torchtally.timing.roofline.strided import finding_s
from torchtally.trace import Call, TensorSpec


@dataclass(frozen=True, slots=True)
class RowRates:
    """What one multiprocessor gets through, in bytes per second, while nothing streams.

    The threads of a row wait for each other.
    """

    warp: float
    block: float


BEFORE_AMPERE = RowRates(*ROWS_BYTES_PER_S_BEFORE_AMPERE)
SINCE_AMPERE = RowRates(*ROWS_BYTES_PER_S_SINCE_AMPERE)


def is_by_rows(call: Call) -> bool:
    """Whether it works along the innermost dimension: another one has kernels of its own."""
    formula = composed(call.plain_name).formula
    if formula in (Formula.LAYER_NORM, Formula.LAYER_NORM_BACKWARD):
        return bool(call.inputs and call.inputs[0].shape)
    return formula is Formula.SOFTMAX and is_innermost(call)


def is_innermost(call: Call) -> bool:
    dim = call.literal("dim", -1)
    if not call.inputs or not call.inputs[0].shape or not isinstance(dim, int):
        return False
    return dim in (-1, len(call.inputs[0].shape) - 1)


def rows_s(call: Call, traffic_bytes: int, chip: Chip) -> float:
    """Seconds for the bytes of all rows; `traffic_bytes` is what the call moves at least."""
    formula = composed(call.plain_name).formula
    if formula is Formula.LAYER_NORM:
        return norm_s(call, traffic_bytes, chip)
    if formula is Formula.LAYER_NORM_BACKWARD:
        return norm_s(call, traffic_bytes, chip) + weight_gradient_s(call, chip)
    return softmax_s(call, traffic_bytes, chip)


def softmax_s(call: Call, traffic_bytes: int, chip: Chip) -> float:
    row, bandwidth = call.inputs[0], bandwidth_bytes_per_s(chip)
    row_elements = row.shape[-1]
    row_bytes = row_elements * row.itemsize_bytes
    multiprocessors = chip.multiprocessors or 1
    reduction = SINCE_AMPERE if chip.sm.has_async_copies else BEFORE_AMPERE
    halves = 2 if "backward" in call.plain_name else 1
    if halves * row_elements <= WARP_ELEMENTS and halves * row_bytes <= WARP_BYTES:
        slots = row.elements / row_elements * 2 ** (row_elements - 1).bit_length()
        return max(
            traffic_bytes / bandwidth + traffic_bytes / (reduction.warp * multiprocessors),
            finding_s(slots, WARP_SLOTS_PER_S, chip),
        )
    if row_bytes % VECTOR_BYTES == 0 and row_bytes < ON_CHIP_ROW_BYTES:
        waited_s = 0.0 if halves == 2 else traffic_bytes / (reduction.block * multiprocessors)
        return traffic_bytes / bandwidth + waited_s
    return long_rows_s(call, row, traffic_bytes, chip)


def long_rows_s(call: Call, row: TensorSpec, traffic_bytes: int, chip: Chip) -> float:
    """Each row is read again: from the cache, where those that are worked on stay there."""
    count = row.elements // row.shape[-1]
    row_bytes = row.shape[-1] * row.itemsize_bytes
    together = BLOCKS_OF_1024 * (chip.multiprocessors or 1)
    is_backward = "backward" in call.plain_name
    resident_bytes = (2 if is_backward else 1) * row_bytes * min(count, together)
    extra_bytes = composed(call.plain_name).row_reads * row.bytes
    moved_bytes = traffic_bytes + rereads(resident_bytes, chip) * extra_bytes
    block_s = LONG_ROW_S + traffic_bytes / count / LONG_ROW_BYTES_PER_S
    return max(moved_bytes / bandwidth_bytes_per_s(chip), count / together * block_s)


def rereads(resident_bytes: int, chip: Chip) -> float:
    """Share of a row that comes from memory again. An H100 finds all of 26 MB in its 50 MB (8192
    rows of 50257 in bfloat16, tests/truth/corpus), an A100 about half of 14 MB in its 40
    (NeuSight). Ada's caches are not in halves.
    """
    if chip.sm.has_halved_l2:
        return cache_misses(resident_bytes, chip)
    return float(chip.l2_cache_bytes is not None and resident_bytes > chip.l2_cache_bytes)


def cache_misses(resident_bytes: int, chip: Chip) -> float:
    """Share of what is read again that misses; an unknown cache is assumed to be large enough."""
    if chip.l2_cache_bytes is None:
        return 0.0
    return min(1.0, resident_bytes / (SHARED_CACHE * chip.l2_cache_bytes))


def norm_s(call: Call, traffic_bytes: int, chip: Chip) -> float:
    """Seconds of a norm, by the estimate for all norms where it is unknown how many rows the chip
    works on.
    """
    if chip.multiprocessors is None or not chip.is_cuda:
        return traffic_bytes / normalization_bytes_per_s(chip)
    rows = call.inputs[0]
    count, row_bytes = rows_of(call, rows)
    together = chip.multiprocessors * (chip.sm.threads // NORM_THREADS)
    if rereads(min(count, together) * row_bytes, chip) == 1:
        traffic_bytes += rows.bytes
    rows_s = max(NORM_FIRST_S, count / together * NORM_ROW_S)
    return traffic_bytes / bandwidth_bytes_per_s(chip) + rows_s


def weight_gradient_s(call: Call, chip: Chip) -> float:
    """Seconds of the gradients of weight and bias, which read what the input's has read."""
    rows = call.inputs[0]
    if len(call.outputs) < 2 or not rows.elements:
        return 0.0
    again_s = 2 * rows.bytes / bandwidth_bytes_per_s(chip)
    count, row_bytes = rows_of(call, rows)
    blocks = ceil(row_bytes / rows.itemsize_bytes / WEIGHT_COLUMNS)
    multiprocessors = chip.multiprocessors or 1
    if count > SPLIT_ABOVE_ROWS and blocks < multiprocessors / 2:
        return again_s
    clocks = CLOCK_HZ / (chip.boost_clock_hz or CLOCK_HZ)
    added_s = ceil(count / WEIGHT_ROWS) * WEIGHT_ROWS_S * clocks
    return max(again_s, added_s * max(1.0, blocks / multiprocessors / BLOCKS_OF_1024))


def rows_of(call: Call, rows: TensorSpec) -> tuple[int, int]:
    """(rows that are normalised, bytes of each)."""
    shape = call.literal("normalized_shape")
    row_elements = 1
    for size in shape if isinstance(shape, tuple) else rows.shape[-1:]:
        assert isinstance(size, int)
        row_elements *= size
    return rows.elements // max(1, row_elements), row_elements * rows.itemsize_bytes

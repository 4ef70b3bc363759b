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
from torchtally.timing.roofline.launches import NORM_BACKWARD
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s, normalization_bytes_per_s
from torchtally.timing.roofline.strided import CLOCK_HZ, VECTOR_BYTES, finding_s
from torchtally.trace import Call, TensorSpec

SOFTMAX = frozenset(
    (
        "_softmax",
        "_log_softmax",
        "_safe_softmax",
        "_softmax_backward_data",
        "_log_softmax_backward_data",
    )
)
LAYER_NORM = frozenset(("native_layer_norm", "_fused_rms_norm"))

WARP_ELEMENTS, WARP_BYTES = 2048, 8192
"""The longest row that a warp takes (host_softmax in SoftMax.cu); backward half of each."""

ON_CHIP_ROW_BYTES = 48 * 1024
"""A row of a softmax as long as this does not stay on chip: shared memory of a block without opting
in to more (CUDA C++ Programming Guide, "Compute Capabilities"), which is what SoftMax.cu uses
(sharedMemPerBlock) for the row and for its warps' sums."""

EXTRA_READS = {
    "_softmax": 2,
    "_log_softmax": 2,
    "_safe_softmax": 2,
    "_softmax_backward_data": 1,
    "_log_softmax_backward_data": 1,
}
"""Beyond the first, of a row that is not kept on chip: for its maximum, for the sum and for the
result; backward the gradient for the sum and for the result (cunn_SoftMaxForward and
cunn_SoftMaxBackward)."""


@dataclass(frozen=True, slots=True)
class RowRates:
    """What one multiprocessor gets through, in bytes per second, while nothing streams.

    The threads of a row wait for each other.
    """

    warp: float
    block: float


WARP_SLOTS_PER_S = 3.8e9
"""Elements that a multiprocessor's warps get through in a second, whose rows count as long as the
next power of two (log2_elements in PersistentSoftmax.cuh), one by one however few bytes they have:
a fit. An H100 takes 17 us more than any kernel for 9 M of bfloat16 in rows of 512 and 80 for 30 M
in rows of 197, where their bytes take 12 and 39 (tests/truth)."""

BEFORE_AMPERE, SINCE_AMPERE = RowRates(35e9, 16e9), RowRates(170e9, 40e9)
"""A fit: rows of 768 to 10240 float32 on a V100 and on two A100s, half of those in
sitar-lab/NeuSight (scripts/asplos/data/dataset/test/softmax.csv @6945927). Backward a block does
not hold its bytes up: 134 M float32 in rows of 2048 take an H100 0.52 ms, as long as their bytes
do (tests/truth/corpus)."""

LONG_ROW_S, LONG_ROW_BYTES_PER_S = 5.0e-6, 11.1e9
"""What a block takes for a row that does not stay on chip, whatever the bandwidth: its threads wait
for the maximum, for the sum and for the next row; and how fast it reads and writes meanwhile. A fit
to softmax forward on an H100, rows of 3137 and 5185 (profiles of timesformer and of owlv2-large in
AMD-AGI/TraceLens, PyTorch 2.6), 30522 and 50257 in half precision (tests/truth/corpus, PyTorch
2.11): 5.0, 6.9, 16.7 and 22.9 us. Rows of 32000, and all backward, come to 0.91 to 1.03 of the
measured times, float32 to 0.88 and 0.97."""

BLOCKS = 2
"""Of 1024 threads, which a multiprocessor has at once (SoftMax.cu, SoftMaxForward_getBlockSize)."""

NORM_THREADS = 128
"""Of the block that has a row of a layer norm (layer_norm_kernel.cu, launch_vectorized_...)."""

NORM_ROW_S = 1.5e-6
"""What a block takes for a row besides its bytes: moments pass through all its warps, and the next
row is another block. A fit to rows of 768 to 2560 float32 on two A100s and an L4 (NeuSight, the
same half): 2.4 to 3.6 us there, but 0.4 us in rows of 1024 and 2048 and none on the L4."""

NORM_FIRST_S = 2.0e-6
"""What the first rows take at least: 1 to 141 rows of 512 to 1024 take 3.1 to 4.0 us on an H100,
where a small elementwise kernel takes 1.6 (AMD-AGI/TraceLens)."""

WEIGHT_ROWS, WEIGHT_ROWS_S = 256, 1.1e-6
"""Rows that a block of threads has at once of those that it adds up to the gradients of 32 weights
and biases, and what it takes for them: a fit (GammaBetaBackwardCUDAKernelTemplate in
layer_norm_kernel.cu). 256, 2048, 4096, 8192, 12608 and 16384 rows take an H100 2.6, 12.5, 20 to 22,
33 to 53, 55 to 59 and 98 us (tests/truth/corpus)."""
WEIGHT_COLUMNS, SPLIT_ABOVE_ROWS = 32, 64 * 1024
"""Columns of a block, and rows above which blocks share them, where there are columns for fewer
blocks than half of the multiprocessors."""

SHARED_CACHE = 0.5
"""Of an L2 cache, what data have that one half of the chip brought in: both halves keep a copy
(NVIDIA A100 whitepaper, "A100 L2 Cache")."""


def is_by_rows(call: Call) -> bool:
    """Whether it works along the innermost dimension: another one has kernels of its own."""
    if call.plain_name in LAYER_NORM | NORM_BACKWARD:
        return bool(call.inputs and call.inputs[0].shape)
    return call.plain_name in SOFTMAX and is_innermost(call)


def is_innermost(call: Call) -> bool:
    dim = call.literal("dim", -1)
    if not call.inputs or not call.inputs[0].shape or not isinstance(dim, int):
        return False
    return dim in (-1, len(call.inputs[0].shape) - 1)


def rows_s(call: Call, traffic_bytes: int, chip: Chip) -> float:
    """Seconds for the bytes of all rows; `traffic_bytes` is what the call moves at least."""
    if call.plain_name in LAYER_NORM:
        return norm_s(call, traffic_bytes, chip)
    if call.plain_name in NORM_BACKWARD:
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
    together = BLOCKS * (chip.multiprocessors or 1)
    is_backward = "backward" in call.plain_name
    resident_bytes = (2 if is_backward else 1) * row_bytes * min(count, together)
    extra_bytes = EXTRA_READS[call.plain_name] * row.bytes
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
    return max(again_s, added_s * max(1.0, blocks / multiprocessors / BLOCKS))


def rows_of(call: Call, rows: TensorSpec) -> tuple[int, int]:
    """(rows that are normalised, bytes of each)."""
    shape = call.literal("normalized_shape")
    row_elements = 1
    for size in shape if isinstance(shape, tuple) else rows.shape[-1:]:
        assert isinstance(size, int)
        row_elements *= size
    return rows.elements // max(1, row_elements), row_elements * rows.itemsize_bytes

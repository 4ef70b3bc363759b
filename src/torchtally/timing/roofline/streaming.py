"""Kernels that go by bytes: elementwise, reductions, norms, losses, indexing, sorting, optimizers.

    seconds = traffic / bandwidth + launches * KERNEL_S

which is a bandwidth that grows with size, bytes / (bytes + bandwidth * KERNEL_S) of the full one.
A cost counts each input read once and each result written once; a kernel that has to read its
input again moves more, and `traffic_bytes` says how much. Work that is heavy for its bytes
(float64 on a chip for graphics, an FFT, a factorisation) is bound by arithmetic outside the matrix
units.

Everything comes from device memory, except for what an elementwise kernel finds in the L2 cache
because the one before left it there (`CACHED_TIMES`): by vectors, since the rates at which places
are found (`strided.py`) are those beside whole traffic. Tensors that are read against the grain (a
transpose) may really be slower.
"""

from math import ceil, prod

from torchtally.chips import Chip
from torchtally.timing.constants import (
    ADDED_PER_S,
    CACHED_TIMES,
    CLOCK_HZ,
    COLUMN_SUM_ROW_S,
    COLUMN_SUM_S,
    DRAWN_PER_S,
    FFT_PASSES,
    KERNEL_S,
    LOSS_ROW_S,
    LOSS_S,
    PANEL,
    PARTLY_CACHED,
    POOLED_BACKWARD_PER_S,
    POOLED_PER_S,
    POOLED_TAPS,
    RADIX_BITS,
    REDUCTION_S,
    SAFE_SOFTMAX_MARKS,
    SAFE_SOFTMAX_PASSES,
    SCAN_ROW_S,
    SCAN_THREADS,
    SPECIAL_PER_CLOCK_OF_FMA,
    SPECIAL_PER_ELEMENT,
    WHOLE_SUM_ELEMENTS,
    WHOLE_SUM_S,
    WHOLLY_CACHED,
)
from torchtally.timing.roofline.batch_norms import batch_norm_s, is_batch_norm
from torchtally.timing.roofline.composed import Formula, composed
from torchtally.timing.roofline.indexed_sums import embedding_sums_s
from torchtally.timing.roofline.kernel import Kernel
from torchtally.timing.roofline.launches import launches_of
from torchtally.timing.roofline.limits import NOTHING, bound_kernel
from torchtally.timing.roofline.lists import chunk_s, imbalance, largest_listed
from torchtally.timing.roofline.rates import (
    bandwidth_bytes_per_s,
    normalization_bytes_per_s,
    vector_peak_flop_per_s,
)
from torchtally.timing.roofline.rows import is_by_rows, rows_s
from torchtally.timing.roofline.strided import casts_s, finding_s, places_s
from torchtally.trace import Call, TensorSpec
from torchtally.work import Cost, Kind
from torchtally.work.indexing import is_sparse_sum
from torchtally.work.rule import integers

SPECIAL_FUNCTIONS = frozenset(
    """
    exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh sigmoid
    erf erfc erfinv gelu silu mish softplus logit pow sqrt rsqrt lgamma digamma logaddexp
    log_sigmoid_forward _softmax _log_softmax logsumexp gelu_backward silu_backward tanh_backward
    sigmoid_backward softplus_backward mish_backward
    """.split()
)


COLUMN_REDUCTIONS = frozenset(("sum", "mean", "linalg_vector_norm", "amax", "amin", "prod"))


SCANS = frozenset(
    """
    cumsum cumprod cummax cummin logcumsumexp _cummax_helper _cummin_helper _logcumsumexp
    """.split()
)


def streaming_kernel(call: Call, kind: Kind, cost: Cost, chip: Chip) -> Kernel:
    """A kernel bound by bytes or by arithmetic, or by every kernel's own least time."""
    traffic = traffic_bytes(call, kind, cost)
    if traffic == 0 and cost.flops == 0:
        return NOTHING
    overhead_s = KERNEL_S * (launches_of(call, kind, cost) + sequential_steps(call, kind))
    return bound_kernel(
        compute_s=arithmetic_s(call, kind, cost, chip),
        memory_s=memory_s(call, kind, traffic, chip),
        overhead_s=overhead_s + waiting_s(call, kind, chip),
    )


def waiting_s(call: Call, kind: Kind, chip: Chip) -> float:
    """Seconds in which threads wait for each other's sums."""
    if call.plain_name in SCANS:
        return running_sums_s(call, chip)
    if kind is not Kind.REDUCTION:
        return 0.0
    rows = column_sum_rows(call)
    if rows is not None:
        return COLUMN_SUM_S + rows * COLUMN_SUM_ROW_S
    return REDUCTION_S + (WHOLE_SUM_S if is_whole_sum(call) else 0.0)


def is_whole_sum(call: Call) -> bool:
    """Many elements become one."""
    results = [spec.elements for spec in call.outputs[:1]]
    return results == [1] and call.inputs[0].elements >= WHOLE_SUM_ELEMENTS


def column_sum_rows(call: Call) -> int | None:
    """How many rows a sum over all but the last dimension adds up; None for another reduction. A
    norm, a mean or a maximum goes the same way.
    """
    source, total = call.inputs[:1], call.outputs[:1]
    is_reduced = call.plain_name in COLUMN_REDUCTIONS and source and total
    if not is_reduced or len(source[0].shape) < 2:
        return None
    columns = source[0].shape[-1]
    is_of_columns = total[0].elements == columns > 1 and source[0].stride[-1] == 1
    return source[0].elements // columns if is_of_columns else None


def running_sums_s(call: Call, chip: Chip) -> float:
    """One after the other along any dimension but the last; beside each other along the last."""
    shape, dim = call.inputs[0].shape, call.literal("dim", -1)
    if not shape or not isinstance(dim, int) or dim % len(shape) == len(shape) - 1:
        return 0.0
    rows = shape[dim]
    threads = (chip.multiprocessors or 1) * SCAN_THREADS
    return rows * SCAN_ROW_S * max(1.0, call.inputs[0].elements / max(1, rows) / threads)


def memory_s(call: Call, kind: Kind, traffic: int, chip: Chip) -> float:
    if is_by_rows(call):
        return rows_s(call, traffic, chip)
    # By running statistics a batch norm is a pass over its elements, which waits for no sum.
    if is_batch_norm(call) and not is_inference(call) and chip.is_cuda:
        return batch_norm_s(call, traffic - extra_bytes(call), chip)
    is_norm = kind is Kind.NORMALIZATION and not is_inference(call)
    bandwidth = normalization_bytes_per_s(chip) if is_norm else bandwidth_bytes_per_s(chip)
    found_s = places_s(call, kind, chip)
    if kind in CACHED and not found_s:
        bandwidth /= 1 - cached_share(traffic, chip) * (1 - 1 / CACHED_TIMES)
    by_elements_s = max(casts_s(call, kind, chip), by_threads_s(call, chip))
    moving_s = traffic / bandwidth * imbalance(call, chip) + embedding_sums_s(call, chip)
    return max(moving_s + found_s, by_elements_s)


def cached_share(traffic: int, chip: Chip) -> float:
    """Share of what a kernel moves that the one before it has left in the L2 cache."""
    if chip.l2_cache_bytes is None:
        return 0.0
    filled = traffic / chip.l2_cache_bytes
    return min(1.0, max(0.0, (PARTLY_CACHED - filled) / (PARTLY_CACHED - WHOLLY_CACHED)))


CACHED = frozenset((Kind.ELEMENTWISE, Kind.RANDOM))


def by_threads_s(call: Call, chip: Chip) -> float:
    """Least seconds of a kernel whose threads have more to do for an element than its bytes."""
    name = call.plain_name
    if name == "index_add":
        return finding_s(call.tensor("source").elements, ADDED_PER_S, chip)
    if is_sparse_sum(call):
        return finding_s(call.tensor("other").elements, ADDED_PER_S, chip)
    if name == "native_dropout":
        return finding_s(call.inputs[0].elements, DRAWN_PER_S, chip)
    if name == "max_pool2d_with_indices" and call.outputs:
        taps = prod(integers(call, "kernel_size")) or POOLED_TAPS
        return finding_s(call.outputs[0].elements * taps / POOLED_TAPS, POOLED_PER_S, chip)
    if name == "max_pool2d_with_indices_backward" and call.outputs:
        return finding_s(call.outputs[0].elements, POOLED_BACKWARD_PER_S, chip)
    if name == "nll_loss_forward":
        rows = call.inputs[0].elements // max(1, *call.inputs[0].shape[-1:])
        return (LOSS_S + LOSS_ROW_S * rows) * CLOCK_HZ / (chip.boost_clock_hz or CLOCK_HZ)
    return chunk_s(call, chip)


def traffic_bytes(call: Call, kind: Kind, cost: Cost) -> int:
    """The cost's bytes, and what a kernel reads or writes again."""
    if kind is Kind.SORTING:
        return cost.bytes + sorting_bytes(call)
    if kind is Kind.FFT:
        return FFT_PASSES * cost.bytes
    return cost.bytes + extra_bytes(call) - repeated_bytes(call)


def repeated_bytes(call: Call) -> int:
    """Bytes of tensors that an operator on lists is given twice, which a thread reads once: a
    gradient that is multiplied by itself.
    """
    if not largest_listed(call):
        return 0
    distinct = {(spec.storage, spec.shape): spec.bytes for spec in call.inputs if spec.elements}
    return sum(spec.bytes for spec in call.inputs) - sum(distinct.values())


def extra_bytes(call: Call) -> int:
    name = call.plain_name
    if name == "_safe_softmax":
        spec = call.inputs[0]
        return SAFE_SOFTMAX_PASSES * spec.bytes + SAFE_SOFTMAX_MARKS * spec.elements
    row = composed(name)
    again = () if is_inference(call) else row.reads_again
    extra_bytes = sum(again.count(spec.argument) * spec.bytes for spec in call.inputs)
    if row.formula is Formula.PADDING:  # all of it is filled first (PadNd.cpp)
        extra_bytes += sum(spec.bytes for spec in call.outputs[:1])
    return extra_bytes


def is_inference(call: Call) -> bool:
    """A batch norm by running statistics reads its input once."""
    return call.literal("training") is False or call.literal("train") is False


def sorting_bytes(call: Call) -> int:
    """Keys, and for each of 8 bits of them a pass over keys and their 8-byte places."""
    spec = call.inputs[0]
    name = call.plain_name
    if name in ("searchsorted", "bucketize", "unique_consecutive", "unique_dim_consecutive"):
        return 0
    passes = ceil(8 * spec.itemsize_bytes / RADIX_BITS)
    if name in ("topk", "kthvalue"):
        return passes * spec.bytes
    return spec.bytes + 2 * passes * (spec.bytes + 8 * spec.elements)


def arithmetic_s(call: Call, kind: Kind, cost: Cost, chip: Chip) -> float:
    """Seconds on the vector units, at most one FLOP of two per clock: few kernels are all
    multiply-adds.

    0 where the chip's rate is not known.
    """
    spec = heaviest(call)
    if spec is None:
        return 0.0
    peak = vector_peak_flop_per_s(spec.dtype, chip)
    if peak is None:
        return 0.0
    found_s = cost.flops / (peak / 2)
    if call.plain_name.removeprefix("_foreach_") in SPECIAL_FUNCTIONS:
        special_per_s = peak / 2 * SPECIAL_PER_CLOCK_OF_FMA
        found_s = max(found_s, SPECIAL_PER_ELEMENT * spec.elements / special_per_s)
    return found_s if kind is not Kind.SORTING else 0.0


def heaviest(call: Call) -> TensorSpec | None:
    """The widest tensor on the device, the largest of those: its dtype is computed in."""
    on_device = [spec for spec in (*call.inputs, *call.outputs) if spec.is_on_device]
    floats = [spec for spec in on_device if "float" in spec.dtype or "complex" in spec.dtype]
    chosen = floats or on_device
    if not chosen:
        return None
    return max(chosen, key=lambda spec: (spec.itemsize_bytes, spec.elements))


def sequential_steps(call: Call, kind: Kind) -> int:
    """Kernels behind the first that a factorisation runs one after the other."""
    if kind is not Kind.LINEAR_ALGEBRA or not call.inputs or len(call.inputs[0].shape) < 2:
        return 0
    return ceil(min(call.inputs[0].shape[-2:]) / PANEL)

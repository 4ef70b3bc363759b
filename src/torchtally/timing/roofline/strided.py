"""Elementwise kernels and copies whose tensors do not lie alike: each element's place is computed.

PyTorch reads and writes vectors of up to 16 bytes where all operands are dense and have the same
strides (aten/src/ATen/native/cuda/CUDALoops.cuh: vectorized_elementwise_kernel, where
`iter.is_contiguous()`). Otherwise (a permuted or sliced tensor, a broadcast one) it takes
elementwise_kernel, which finds each element of each operand by a division for every dimension.
`cat` has a kernel of its own for tensors that are all contiguous, and another for all others
(Shape.cu, CatArrayBatchedCopy). Rows are gathered by vectors of 16 bytes where they begin on them,
else element by element (IndexKernelUtils.cu, fast_gather_kernel_eligible; Indexing.cu).
"""

from collections.abc import Sequence

from torchtally.chips import Chip
from torchtally.timing.constants import (
    CAST_OPERAND_S,
    CAST_S,
    CASTING_S,
    CAT_SLICES_PER_S,
    CLOCK_HZ,
    GATHER_PLACES_PER_S,
    PLACES_PER_S,
    TRANSPOSED_PLACES_PER_S,
    VECTOR_BYTES,
)
from torchtally.timing.roofline.composed import Formula, composed
from torchtally.trace import Call, TensorSpec
from torchtally.work import Kind
from torchtally.work.indexing import is_sparse_sum

COPY_CASTS_PER_S = 2 / (CAST_S + 2 * CAST_OPERAND_S)
"""Elements that a copy reads and writes there in a second."""


NARROWED = frozenset(("float16", "bfloat16"))


GATHERS = frozenset(("embedding", "index_select"))


def places_s(call: Call, kind: Kind, chip: Chip) -> float:
    """Seconds that a kernel takes besides its bytes to find elements; 0 where they lie alike."""
    tensors = [spec for spec in (*call.inputs, *call.outputs) if spec.is_on_device]
    elements = max((spec.elements for spec in tensors), default=0)
    formula = composed(call.plain_name).formula
    if formula is Formula.CONCATENATION:
        return 0.0 if lie_alone(tensors) else finding_s(elements, cat_places_per_s(tensors), chip)
    if call.plain_name in GATHERS:
        is_by_vectors = all(row_bytes(spec) % VECTOR_BYTES == 0 for spec in call.outputs)
        return 0.0 if is_by_vectors else finding_s(elements_of(call), GATHER_PLACES_PER_S, chip)
    if formula is Formula.PADDING and is_transposed(call):
        return finding_s(elements, TRANSPOSED_PLACES_PER_S, chip)
    if kind not in (Kind.ELEMENTWISE, Kind.COPY) or call.plain_name.startswith("_foreach_"):
        return 0.0
    if lie_alike(tensors) or is_sparse_sum(call):
        return 0.0
    is_across = kind is Kind.COPY and lie_across(tensors)
    per_s = TRANSPOSED_PLACES_PER_S if is_across else PLACES_PER_S
    return finding_s(elements, per_s, chip)


def lie_across(tensors: Sequence[TensorSpec]) -> bool:
    """What lies together in one is apart in another, of those as large as the largest."""
    largest = max(spec.elements for spec in tensors)
    whole = [spec for spec in tensors if spec.elements == largest and spec.shape]
    innermost = {next(reversed(strides(spec)), 1) == 1 for spec in whole}
    return len(innermost) > 1


def casts_s(call: Call, kind: Kind, chip: Chip) -> float:
    """Least seconds of a kernel that converts between data types; 0 of one that does not."""
    if kind not in (Kind.ELEMENTWISE, Kind.COPY) or call.plain_name.startswith("_foreach_"):
        return 0.0
    tensors = [spec for spec in (*call.inputs, *call.outputs) if spec.is_on_device and spec.shape]
    if len({spec.dtype for spec in tensors if "float" in spec.dtype}) < 2:
        return 0.0
    if kind is Kind.COPY and call.outputs and call.outputs[0].dtype in NARROWED:
        return 0.0
    elements = max(spec.elements for spec in tensors)
    element_s = CAST_S + CAST_OPERAND_S * len(tensors)
    return max(CASTING_S, finding_s(elements, 1 / element_s, chip))


def cat_places_per_s(tensors: Sequence[TensorSpec]) -> float:
    has_slices = all(spec.shape and spec.stride[-1] == 1 for spec in tensors)
    return CAT_SLICES_PER_S if has_slices else TRANSPOSED_PLACES_PER_S


def is_transposed(call: Call) -> bool:
    """Innermost elements of what it reads do not lie together."""
    spec = call.inputs[0]
    return bool(spec.shape) and spec.shape[-1] > 1 and spec.stride[-1] != 1


def row_bytes(spec: TensorSpec) -> int:
    return spec.shape[-1] * spec.itemsize_bytes if spec.shape else spec.itemsize_bytes


def elements_of(call: Call) -> int:
    """Elements that it gives back."""
    return sum(spec.elements for spec in call.outputs)


def finding_s(elements: float, per_s: float, chip: Chip) -> float:
    """Seconds, where a multiprocessor of an H100 finds `per_s`; 0 where their number is unknown."""
    if chip.multiprocessors is None:
        return 0.0
    clock_hz = chip.boost_clock_hz or CLOCK_HZ
    return elements / (per_s * clock_hz / CLOCK_HZ * chip.multiprocessors)


def lie_alone(tensors: Sequence[TensorSpec]) -> bool:
    """Each is contiguous."""
    return all(strides(spec) == contiguous_strides(spec.shape) for spec in tensors)


def lie_alike(tensors: Sequence[TensorSpec]) -> bool:
    """All have the same shape and strides, without a gap."""
    layouts = {(sizes(spec), strides(spec)) for spec in tensors}
    return len(layouts) <= 1 and all(map(is_dense, tensors))


def sizes(spec: TensorSpec) -> tuple[int, ...]:
    return tuple(size for size in spec.shape if size > 1)


def strides(spec: TensorSpec) -> tuple[int, ...]:
    """Strides of dimensions of more than one element: the others' have no meaning."""
    return tuple(step for size, step in zip(spec.shape, spec.stride, strict=True) if size > 1)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor, of its dimensions of more than one element."""
    steps, step = [], 1
    for size in reversed(shape):
        if size > 1:
            steps.append(step)
        step *= size
    return tuple(reversed(steps))


def is_dense(spec: TensorSpec) -> bool:
    """Whether, in some order of its dimensions, one element lies behind the other."""
    expected = 1
    for step, size in sorted(zip(strides(spec), sizes(spec), strict=True)):
        if step != expected:
            return False
        expected *= size
    return True

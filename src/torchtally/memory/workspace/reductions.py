"""Partial results of a reduction that many blocks of threads share: often larger than its input.

PyTorch's reduction kernel gives each result to so many blocks that all multiprocessors have work;
their partial results wait in a buffer. Summing the rows of a matrix (every bias's gradient) takes
up to 132 MiB that way on an H100, whatever the matrix holds.

The names are those of aten/src/ATen/native/cuda/Reduce.cuh (PyTorch 2.11, setReduceConfig), whose
choices are followed one by one.
"""

from dataclasses import dataclass
from math import prod

from torchtally.chips import Chip
from torchtally.trace import Call, TensorSpec

MAX_THREADS = 512
WARP = 32
VECTOR = 4
MIN_VALUES_PER_THREAD = 16
MAX_VALUES_PER_THREAD = 256

ACCUMULATES_IN_FLOAT = frozenset(["float16", "bfloat16"])

PAIR_BYTES = 16
"""A value with its index, or Welford's running moments."""

TAKES_PAIRS = frozenset(
    ["aten.argmax", "aten.argmin", "aten.var", "aten.std", "aten.var_mean", "aten.std_mean"]
)
KEEPS_DTYPE = frozenset(["aten.amax", "aten.amin", "aten.max", "aten.min", "aten.any", "aten.all"])
SUMS = frozenset(
    ["aten.sum", "aten.mean", "aten.nansum", "aten.norm", "aten.linalg_vector_norm", "aten.prod"]
)
REDUCTIONS = TAKES_PAIRS | KEEPS_DTYPE | SUMS


@dataclass(frozen=True, slots=True)
class Reduction:
    """What is reduced, as the kernel sees it: neighbouring dimensions joined."""

    inputs: int
    """Elements per result."""
    outputs: int
    inner_stride: int
    """Of the fastest dimension that is reduced."""
    outer_stride: int | None
    """Of the fastest dimension that is kept; None where all are reduced."""
    outer_size: int
    reduced_dims: int
    other_strides: tuple[int, ...]
    """Of all dimensions but the fastest kept one."""


def reduction_scratch(call: Call, chip: Chip) -> tuple[int, ...]:
    """Bytes of (partial results, semaphores) of a reduction; empty where one block does it all."""
    source = call.inputs[0]
    reduction = reduction_of(source, reduced_dims(call, source))
    if reduction is None or chip.multiprocessors is None:
        return ()
    return buffers(reduction, accumulator_bytes(call, source), source.itemsize_bytes, chip)


def accumulator_bytes(call: Call, source: TensorSpec) -> int:
    """Bytes of one partial result."""
    takes_index = call.name in ("aten.max", "aten.min") and len(call.outputs) > 1
    if call.name in TAKES_PAIRS or takes_index:
        return PAIR_BYTES
    if call.name in KEEPS_DTYPE:
        return source.itemsize_bytes
    return 4 if source.dtype in ACCUMULATES_IN_FLOAT else max(call.outputs[0].itemsize_bytes, 4)


def reduced_dims(call: Call, source: TensorSpec) -> tuple[int, ...]:
    rank = len(source.shape)
    dim = call.literal("dim")
    if dim is None or dim == ():
        return tuple(range(rank))
    dims = dim if isinstance(dim, tuple) else (dim,)
    return tuple(int(dim) % rank for dim in dims if isinstance(dim, int))


def reduction_of(source: TensorSpec, dims: tuple[int, ...]) -> Reduction | None:
    """None where nothing is reduced."""
    if source.elements == 0:
        return None
    pairs = list(zip(source.shape, source.stride, strict=True))
    reduced = join_dimensions([pair for at, pair in enumerate(pairs) if at in dims])
    kept = join_dimensions([pair for at, pair in enumerate(pairs) if at not in dims])
    if not reduced:
        return None
    inputs = prod(size for size, _ in reduced)
    return Reduction(
        inputs=inputs,
        outputs=source.elements // inputs,
        inner_stride=reduced[0][1],
        outer_stride=kept[0][1] if kept else None,
        outer_size=kept[0][0] if kept else 1,
        reduced_dims=len(reduced),
        other_strides=tuple(stride for _, stride in (*reduced, *kept[1:])),
    )


def join_dimensions(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """(size, stride) of dimensions, fastest first, those that follow one another as one."""
    dimensions: list[tuple[int, int]] = []
    for size, stride in sorted((pair for pair in pairs if pair[0] > 1), key=lambda pair: pair[1]):
        if dimensions and stride == dimensions[-1][0] * dimensions[-1][1]:
            dimensions[-1] = (dimensions[-1][0] * size, dimensions[-1][1])
        else:
            dimensions.append((size, stride))
    return dimensions


def buffers(
    reduction: Reduction, accumulator_bytes: int, itemsize_bytes: int, chip: Chip
) -> tuple[int, ...]:
    """The launch configuration, and the buffers it needs."""
    is_inner = reduction.outer_stride is None or reduction.inner_stride < reduction.outer_stride
    across, along = (
        (reduction.inputs, reduction.outputs) if is_inner else (reduction.outputs, reduction.inputs)
    )
    vector = 1
    if is_inner:
        if reduction.inner_stride == 1 and across > 128 and reduction.reduced_dims == 1:
            across //= VECTOR
    elif reduction.outer_stride == 1:
        vector = vector_of(reduction)
        across //= vector
    most = MAX_THREADS // vector
    width_limit = power_of_two_below(across, most)
    height = min(power_of_two_below(along, most), most // min(width_limit, WARP))
    width = min(width_limit, most // height)
    step_input, step_output = (width, 1) if is_inner else (1, width)
    values = -(-reduction.inputs // step_input)
    if values < height * MIN_VALUES_PER_THREAD and values < MAX_VALUES_PER_THREAD:
        return ()  # each row of threads makes a result of its own
    values = -(-reduction.inputs // (step_input * height))
    grid = -(-(reduction.outputs // vector) // step_output)
    resident_blocks = (chip.multiprocessors or 0) * (chip.sm.threads // (width * height))
    if values < MAX_VALUES_PER_THREAD or grid > resident_blocks:
        return ()
    blocks = max(
        min(-(-resident_blocks // grid), -(-values // MIN_VALUES_PER_THREAD)),
        -(-values // MAX_VALUES_PER_THREAD),
    )
    if blocks <= 1:
        return ()
    partial_bytes = accumulator_bytes * reduction.outputs * blocks
    if not is_inner:
        partial_bytes *= width * vector
    return partial_bytes, 4 * grid


def vector_of(reduction: Reduction) -> int:
    """How many results a thread makes at once: as many as all strides are multiples of."""
    vector = VECTOR
    for number in (reduction.outer_size, *reduction.other_strides):
        while number % vector:
            vector //= 2
    return vector


def power_of_two_below(number: int, most: int) -> int:
    return most if number >= most else max(1, 1 << (number.bit_length() - 1))

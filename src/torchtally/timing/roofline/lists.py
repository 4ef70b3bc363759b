"""Operators on lists of tensors: an optimizer's, in chunks that blocks of threads go through.

PyTorch (aten/src/ATen/native/cuda/MultiTensorApply.cuh) gives a block of 512 threads a chunk of
`FOREACH_CHUNK` elements of one tensor, and a launch as many blocks as its arguments have room for
(`LIST_LIMITS`).
"""

from collections.abc import Iterable
from math import ceil, sqrt
from typing import NamedTuple

from torchtally.chips import Chip
from torchtally.timing.constants import CHUNK_S, CLOCK_HZ, FOREACH_CHUNK, FUSED_CHUNK_S
from torchtally.trace import Call, TensorSpec


class ListLimits(NamedTuple):
    """What one launch on lists has room for in its arguments: depth_to_max_tensors and
    depth_to_max_blocks in MultiTensorApply.cuh.
    """

    tensors: tuple[int, int, int, int, int]
    """By lists that go together, 1 to 5."""
    blocks: int


OF_32_KB = ListLimits((770, 448, 336, 252, 210), 2240)
"""PyTorch 2.13 built for CUDA 13."""
OF_4_KB = ListLimits((110, 64, 48, 36, 30), 320)
"""Until 2.11, and built for CUDA 12: the 124 M parameters of a GPT-2 take 7 launches there
(tests/truth/corpus)."""
LIST_LIMITS = OF_32_KB


ON_LISTS = ("_foreach_", "_fused_ada", "_fused_sgd", "_amp_foreach")
"""Beginnings of the names of operators on lists of tensors."""


def chunk_s(call: Call, chip: Chip) -> float:
    """Least seconds of a kernel on lists; 0 of other kernels, and where the clock is unknown."""
    largest = largest_listed(call)
    if not largest or chip.boost_clock_hz is None:
        return 0.0
    least_s = FUSED_CHUNK_S if call.plain_name.startswith("_fused_ada") else CHUNK_S
    return least_s * CLOCK_HZ / chip.boost_clock_hz * min(1.0, largest / FOREACH_CHUNK)


def imbalance(call: Call, chip: Chip) -> float:
    """How many times longer a launch takes for multiprocessors having unequally many blocks.

    As if half of what the fuller ones have to do more was done while the others still move bytes:
    the root of the ratio between the most blocks of one and the mean. Of 320 blocks an H100's 132
    multiprocessors have 3 or 2, which makes 1.11; AdamW, fused or not, averages and sums of 124 M
    to 1.5 G parameters take it 1.09 to 1.15 times as long as their bytes by themselves
    (tests/truth/corpus, PyTorch 2.11).
    """
    blocks = blocks_per_launch(call)
    if chip.multiprocessors is None or blocks <= chip.multiprocessors:
        return 1.0
    mean = blocks / chip.multiprocessors
    return sqrt(ceil(mean) / mean)


def listed_tensors(call: Call) -> int:
    """How many tensors the longest list of a call has; 0 of a call on single tensors."""
    if not call.plain_name.startswith(ON_LISTS):
        return 0
    return max(map(len, tensor_lists(call)), default=0)


def largest_listed(call: Call) -> int:
    """Elements of the largest tensor in the lists of a call; 0 of a call on single tensors."""
    if not call.plain_name.startswith(ON_LISTS):
        return 0
    return max((spec.elements for specs in tensor_lists(call) for spec in specs), default=0)


def list_launches(call: Call, name: str) -> int:
    """Launches of a foreach or fused operator. Norms and maxima fill a buffer for blocks' results
    first and add these up at the end (ForeachReduceOp.cu).
    """
    lists = tensor_lists(call)
    if not lists:
        return 1
    longest = max(lists, key=len)
    depth = len(lists) + writes_new_list(call, longest)
    launches = multi_tensor_launches((spec.elements for spec in longest), depth)
    return launches + (2 if name in ("_foreach_norm", "_foreach_max", "_foreach_powsum") else 0)


SINGLE_TENSORS = frozenset({"found_inf", "inv_scale", "grad_scale", "lr", "alpha", "scalar"})
"""Arguments of one tensor beside the lists."""


def tensor_lists(call: Call) -> list[tuple[TensorSpec, ...]]:
    """The lists that a kernel goes over together. Step counters are an argument apart."""
    names = dict.fromkeys(spec.argument for spec in call.inputs)
    skipped = SINGLE_TENSORS | {"state_steps"}
    return [call.tensors(name) for name in names if name not in skipped]


def blocks_per_launch(call: Call) -> int:
    """Blocks of a call on lists, in its largest launch; 0 of a call on single tensors."""
    if not call.plain_name.startswith(ON_LISTS):
        return 0
    lists = tensor_lists(call)
    longest = max(lists, key=len, default=())
    blocks = sum(ceil(spec.elements / FOREACH_CHUNK) for spec in longest)
    return min(blocks, LIST_LIMITS.blocks)


def writes_new_list(call: Call, longest: tuple[TensorSpec, ...]) -> bool:
    """Whether results are out of place: their addresses go along."""
    return not call.is_mutating and len(call.outputs) == len(longest)


def multi_tensor_launches(elements: Iterable[int], depth: int) -> int:
    """Launches for tensors of these sizes: one ends when it is full of tensors or of blocks."""
    limit = LIST_LIMITS.tensors[min(depth, len(LIST_LIMITS.tensors)) - 1]
    launches = tensors = blocks = 0
    for size in elements:
        if size == 0:
            continue
        tensors += 1
        blocks += ceil(size / FOREACH_CHUNK)
        full, rest = divmod(blocks, LIST_LIMITS.blocks)
        if full:
            launches, blocks, tensors = launches + full, rest, 1 if rest else 0
        if tensors == limit:
            launches, blocks, tensors = launches + 1, 0, 0
    return launches + (1 if blocks else 0)

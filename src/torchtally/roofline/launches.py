"""How many kernels an operator launches: the host takes its time for each, and so does the device.

Most launch one. The table holds those that launch more, by PyTorch's CUDA sources
(aten/src/ATen/native/cuda, torch 2.13); numbers that depend on a library's choice are its usual
ones. Lists of tensors go to the device in as few kernels as their addresses fit (`ForEach`).
"""

from collections.abc import Iterable
from math import ceil

from torchtally.cost import Kind, cost_of
from torchtally.record import Call, TensorSpec

SEVERAL: dict[str, int] = {
    # layer_norm_kernel.cu: the gradient of the input; those of weight and bias.
    "native_layer_norm_backward": 2,
    "_fused_rms_norm_backward": 2,
    # group_norm_kernel.cu: moments, their use per channel, the result; backward likewise.
    "native_group_norm": 3,
    "native_group_norm_backward": 4,
    # Normalization.cu: statistics, running statistics, the result; backward: sums, the gradient.
    "native_batch_norm": 3,
    "_native_batch_norm_legit": 3,
    "_batch_norm_with_update": 3,
    "native_batch_norm_backward": 2,
    "batch_norm_backward": 2,
    # A product that adds to a matrix: the matrix is copied into the result first (Blas.cpp).
    "baddbmm": 2,
    # Loss.cu: gradients start as zeros.
    "nll_loss_backward": 2,
    "nll_loss2d_backward": 2,
    "max_pool2d_with_indices_backward": 2,
    "index_select_backward": 2,
    "slice_backward": 2,
    "select_backward": 2,
    "embedding_bag": 3,
    "_embedding_bag": 3,
    # Sorting by cub: a histogram, its scan, a pass for each digit; keys' places before it.
    "sort": 7,
    "argsort": 7,
    "msort": 7,
    "topk": 4,
    "kthvalue": 1,
    "mode": 8,
    "_unique": 12,
    "_unique2": 12,
    "unique_dim": 14,
    "unique_consecutive": 4,
    "randperm": 8,
    "multinomial": 4,
    # Indexing: nonzero counts, scans and writes; masks go by nonzero; adding sorts places first.
    "nonzero": 3,
    "masked_select": 3,
    "masked_scatter": 3,
    "cumsum": 2,
    "cumprod": 2,
    "_cudnn_rnn_flatten_weight": 1,
    "_ctc_loss": 2,
    "_ctc_loss_backward": 3,
    "_weight_norm_interface_backward": 2,
    "_amp_update_scale": 1,
}

EMBEDDING_SORTS_ABOVE = 3072
"""Indices from which Embedding.cu sorts them and adds up runs, instead of in one kernel."""
EMBEDDING_SORTED = 18
"""Zeros, places, a sort of 64-bit indices (histogram, scan, 8 digits), and the kernels that find
and add up runs of one index."""

ACCUMULATING_PUT = 12
"""index_put with accumulate: places, a sort, and a kernel over runs (Indexing.cu)."""

CAT_TENSORS = 128
"""Tensors that one kernel of `cat` takes (Shape.cu, CAT_ARRAY_BATCH_SIZE)."""

FOREACH_CHUNK = 65536
"""Elements of one block's work: kChunkSize in MultiTensorApply.cuh."""
FOREACH_TENSORS = (770, 448, 336, 252, 210)
FOREACH_BLOCKS = 2240
"""Tensors (by lists that go together, 1 to 5) and blocks of one launch, in builds for CUDA 13,
whose kernels take 32 KB of arguments: depth_to_max_tensors in MultiTensorApply.cuh. Builds for
CUDA 12 take 110, 64, 48, 36, 30 and 320."""


def launches(call: Call) -> int:
    """Kernels (or copies) that one call sends to the device. 0 for views and what is not counted.

    0 as well for calls that touch no byte: an operator on no elements launches nothing.
    """
    kind, cost = cost_of(call)
    if kind.is_free or kind is Kind.UNCOUNTED or not (cost.bytes or cost.flops):
        return 0
    name = call.name.partition(".")[2].removesuffix("_")
    if name.startswith(("_foreach_", "_fused_ada", "_fused_sgd", "_amp_foreach")):
        return list_launches(call, name)
    if kind is Kind.CONVOLUTION and "backward" in name:
        return convolution_gradients(call)
    if kind is Kind.ATTENTION:
        return attention_launches(name)
    if kind is Kind.RECURRENT:
        return recurrent_launches(call)
    if name in ("embedding_dense_backward", "embedding_backward"):
        return embedding_launches(call)
    if name in ("index_put", "_index_put_impl", "_unsafe_index_put"):
        return ACCUMULATING_PUT if call.literal("accumulate") is True else 1
    if name in ("cat", "concat", "stack", "_stack", "hstack", "vstack"):
        return max(1, ceil(len(call.inputs) / CAT_TENSORS))
    if name == "addmm":
        return 1 if len(call.inputs[0].shape) < 2 else 2
    return SEVERAL.get(name, 1)


def list_launches(call: Call, name: str) -> int:
    """Of a foreach or fused operator; norms and maxima add up blocks' results at the end."""
    lists = tensor_lists(call)
    if not lists:
        return 1
    longest = max(lists, key=len)
    depth = len(lists) + writes_new_list(call, longest)
    found = multi_tensor_launches((spec.elements for spec in longest), depth)
    return found + (1 if name in ("_foreach_norm", "_foreach_max", "_foreach_powsum") else 0)


SINGLE_TENSORS = frozenset({"found_inf", "inv_scale", "grad_scale", "lr", "alpha", "scalar"})
"""Arguments of one tensor beside the lists."""


def tensor_lists(call: Call) -> list[tuple[TensorSpec, ...]]:
    """The lists that a kernel goes over together. Step counters are an argument apart."""
    names = dict.fromkeys(spec.argument for spec in call.inputs)
    skipped = SINGLE_TENSORS | {"state_steps"}
    return [call.tensors(name) for name in names if name not in skipped]


def writes_new_list(call: Call, longest: tuple[TensorSpec, ...]) -> bool:
    """Out of place: the results' addresses go along."""
    return not call.is_mutating and len(call.outputs) == len(longest)


def multi_tensor_launches(elements: Iterable[int], depth: int) -> int:
    """Launches for tensors of these sizes: one ends when it is full of tensors or of blocks."""
    limit = FOREACH_TENSORS[min(depth, len(FOREACH_TENSORS)) - 1]
    found = tensors = blocks = 0
    for size in elements:
        if size == 0:
            continue
        tensors += 1
        blocks += ceil(size / FOREACH_CHUNK)
        full, rest = divmod(blocks, FOREACH_BLOCKS)
        if full:
            found, blocks, tensors = found + full, rest, 1 if rest else 0
        if tensors == limit:
            found, blocks, tensors = found + 1, 0, 0
    return found + (1 if blocks else 0)


def convolution_gradients(call: Call) -> int:
    """A kernel for each gradient wanted; the bias's is a sum."""
    flags = call.literal("output_mask")
    return max(1, sum(map(bool, flags))) if isinstance(flags, tuple) else len(call.outputs) or 1


def attention_launches(name: str) -> int:
    is_backward = "backward" in name
    if "flash" in name or "varlen" in name or "cudnn" in name:
        return 3 if is_backward else 1
    if "efficient" in name:
        return 2 if is_backward else 1
    return 4


def recurrent_launches(call: Call) -> int:
    """The inputs' product of each matrix, and for each step the hidden state's and the gates."""
    shape, sizes = call.inputs[0].shape, call.literal("batch_sizes")
    if isinstance(sizes, tuple) and sizes:
        steps = len(sizes)
    elif len(shape) < 3:
        steps = 1
    else:
        steps = shape[1] if call.literal("batch_first") is True else shape[0]
    matrices = sum(len(spec.shape) == 2 for spec in call.tensors("weight") or call.inputs[1:])
    pairs = max(1, matrices // 2)
    times = 2 if "backward" in call.name else 1
    return times * pairs * (1 + 2 * steps)


def embedding_launches(call: Call) -> int:
    indices = call.tensors("indices")
    n = indices[0].elements if indices else call.inputs[-1].elements
    return EMBEDDING_SORTED if n > EMBEDDING_SORTS_ABOVE else 2

"""Memory that an operator's CUDA implementation takes besides its results, and gives back.

Every rule gives the sizes that are held together, in the order they are taken. They were seen on
PyTorch's CUDA build (`tests/truth/operators.json` holds what it allocated, call by call) and follow
the sources named beside them, below aten/src/ATen/native.

    B: batch.  H: heads.  S: queries.  D: head size.  N: rows or indices.  C: channels.  G: groups.
"""

from collections.abc import Callable
from functools import partial

from torchtally.chips import Chip
from torchtally.memory.workspace.kind import SCRATCH, Workspace
from torchtally.memory.workspace.reductions import REDUCTIONS, Reduction, buffers, reduction_scratch
from torchtally.trace import Call, TensorSpec

Rule = Callable[[Call, Chip], tuple[int, ...]]
RULES: dict[str, Rule] = dict.fromkeys(REDUCTIONS, reduction_scratch)
RULES_BEFORE_RESULTS: dict[str, Rule] = {}
"""Of what is taken before the results are allocated, and given back after that."""

FLOAT_BYTES = 4
INDEX_BYTES = 8


def has_scratch(operator: str) -> bool:
    return operator in RULES


def scratch(call: Call, chip: Chip) -> tuple[Workspace, ...]:
    """Everything that one call takes and gives back."""
    rule = RULES.get(call.name)
    sizes = rule(call, chip) if rule is not None else ()
    return tuple(Workspace(SCRATCH, size) for size in sizes if size)


def has_scratch_before_results(operator: str) -> bool:
    return operator in RULES_BEFORE_RESULTS


def scratch_before_results(call: Call, chip: Chip) -> tuple[Workspace, ...]:
    """What one call holds while its results are allocated."""
    rule = RULES_BEFORE_RESULTS.get(call.name)
    sizes = rule(call, chip) if rule is not None else ()
    return tuple(Workspace(SCRATCH, size) for size in sizes if size)


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def rule_before_results(name: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES_BEFORE_RESULTS[name] = function
        return function

    return register


@rule("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten._addmm_activation")
def product(call: Call, chip: Chip) -> tuple[int, ...]:
    """Copies of matrices whose rows or columns do not lie one after the other (cuda/Blas.cpp)."""
    operands = [spec for spec in call.inputs if not spec.is_written][-2:]
    return tuple(
        spec.elements * spec.itemsize_bytes for spec in operands if not is_blas_matrix(spec)
    )


@rule("aten._softmax_backward_data")
def softmax_backward(call: Call, chip: Chip) -> tuple[int, ...]:
    """The product of gradient and result (cuda/SoftMax.cu)."""
    return (call.tensor("grad_output").elements * call.outputs[0].itemsize_bytes,)


@rule("aten._safe_softmax")
def safe_softmax(call: Call, chip: Chip) -> tuple[int, ...]:
    """Which scores are minus infinity, which rows are so throughout, and a zero (SoftMax.cpp)."""
    source = call.inputs[0]
    return source.elements, source.elements // max(source.shape[-1], 1), FLOAT_BYTES


@rule("aten._scaled_dot_product_flash_attention_backward", "aten._flash_attention_backward")
def flash_backward(call: Call, chip: Chip) -> tuple[int, ...]:
    """fp32 gradient of the queries, the rows' sums, keys' and values' gradients for all heads.

    What comes in in another layout than the kernel's, (B, S, H, D), is copied first
    (transformers/cuda/attention_backward.cu, flash_attn/flash_api.cpp).
    """
    query, key = call.tensor("query"), call.tensor("key")
    if len(query.shape) != 4:
        return ()
    swapped = call.name.startswith("aten._scaled")
    B, H, S, D = query.shape if swapped else (query.shape[0], *query.shape[2:0:-1], query.shape[3])
    heads_at = 1 if swapped else 2
    copies = [
        spec.elements * spec.itemsize_bytes
        for spec in (call.tensor("grad_out"), call.tensor("out"))
        if not is_contiguous(spec, (0, 2, 1, 3) if swapped else (0, 1, 2, 3))
    ]
    rows = -(-S // 128) * 128
    width = -(-D // 32) * 32 if D <= 192 else 256
    shared = key.shape[heads_at] != H
    expanded = [B * H * key.shape[3 - heads_at] * D * key.itemsize_bytes] * 2 if shared else []
    return (*copies, B * H * rows * FLOAT_BYTES, B * H * rows * width * FLOAT_BYTES, *expanded)


@rule("aten._scaled_dot_product_efficient_attention_backward")
def efficient_backward(call: Call, chip: Chip) -> tuple[int, ...]:
    """The rows' sums, and the fp32 gradients that the kernel keeps outside its results.

    The queries' in whole tiles, each with a lock and a counter; above a head size of 128 the keys'
    and values' too, unless they are fp32 themselves. In fp32 the rows' sums are made by other
    operators, from the product of gradient and result (transformers/cuda/attention_backward.cu,
    mem_eff_attention/kernel_backward.h).

    Known limit: tiles are those of Ampere and later.
    """
    query, keys = call.tensor("query"), call.tensor("key").shape[2]
    B, H, S, D = query.shape
    is_half = query.itemsize_bytes < FLOAT_BYTES
    rows, columns = (64, 64) if D <= 64 else (128, 128 if is_half and D <= 128 else 64)
    tiles = -(-S // rows) * -(-D // columns)
    head_bytes = tiles * (rows * columns * FLOAT_BYTES + 16)
    if is_half and D > 128:
        head_bytes += 2 * (-(-keys // 64) * 64) * (-(-D // 64) * 64) * FLOAT_BYTES
    sums_bytes = B * H * S * FLOAT_BYTES
    return (sums_bytes, B * H * head_bytes)


@rule(
    "aten._scaled_dot_product_cudnn_attention_backward",
    "transformer_engine.cudnn_attention_backward",
)
def cudnn_backward(call: Call, chip: Chip) -> tuple[int, ...]:
    """fp32 gradient of the queries and the rows' sums, in one workspace (cudnn/MHA.cpp).

    Known limit: what else cuDNN's engine asks for is not published.
    """
    query = call.tensor("query")
    return (query.elements // query.shape[-1] * (query.shape[-1] + 1) * FLOAT_BYTES,)


@rule("aten.native_group_norm")
def group_norm(call: Call, chip: Chip) -> tuple[int, ...]:
    """Scale and shift of every channel (cuda/group_norm_kernel.cu)."""
    N, C = call.tensor("input").shape[:2]
    return (N * C * FLOAT_BYTES,) * 2


@rule("aten.native_group_norm_backward")
def group_norm_backward(call: Call, chip: Chip) -> tuple[int, ...]:
    N, C = call.tensor("input").shape[:2]
    group = call.literal("group", 1)
    assert isinstance(group, int)
    return (N * C * FLOAT_BYTES,) * 3 + (N * group * FLOAT_BYTES,) * 2


@rule("aten.native_layer_norm_backward", "aten._fused_rms_norm_backward")
def layer_norm_backward(call: Call, chip: Chip) -> tuple[int, ...]:
    """Many narrow rows: partial gradients of the weights, summed (cuda/layer_norm_kernel.cu)."""
    source, weight = call.tensor("input"), call.tensors("weight")
    if not weight or chip.multiprocessors is None:
        return ()
    width = weight[0].elements
    rows = source.elements // width
    if rows <= 64 * 1024 or width // 32 >= chip.multiprocessors // 2:
        return ()
    parts = -(-rows // 32)
    weights = 1 if "rms" in call.name else 2
    partial_sums = parts * width * weight[0].itemsize_bytes
    summed = Reduction(parts, width, width, 1, width, 1, (width,))
    return (partial_sums,) * weights + buffers(summed, FLOAT_BYTES, weight[0].itemsize_bytes, chip)


@rule("aten.embedding_dense_backward")
def embedding_backward(call: Call, chip: Chip) -> tuple[int, ...]:
    """Sorted indices, and fp32 partial sums of the rows that share one (cuda/Embedding.cu).

    Known limit: bounded from above, since the number of different indices is not known.
    """
    indices = call.tensor("indices").elements
    if indices <= 3072:
        return ()
    rows, width = call.outputs[0].shape
    parts = indices // 10 + min(indices, rows)
    return (INDEX_BYTES * indices,) * 5 + (INDEX_BYTES * parts, FLOAT_BYTES * parts * width)


@rule("aten.index_put", "aten.index_put_", "aten._index_put_impl_", "aten._unsafe_index_put")
def index_put(call: Call, chip: Chip) -> tuple[int, ...]:
    """Indices sorted, for sums that do not depend on the order of threads (cuda/Indexing.cu)."""
    if call.literal("accumulate") is not True or not call.tensors("indices"):
        return ()
    count = max(tensor.elements for tensor in call.tensors("indices"))
    return (INDEX_BYTES * count,) * 5 + (2 * INDEX_BYTES * count,)


@rule("aten.sort", "aten.argsort")
def sort(call: Call, chip: Chip) -> tuple[int, ...]:
    """Keys and indices once more, and the radix sort's own (cuda/Sort.cpp).

    Fewer than 128 rows are sorted as one, then by row: with each index goes its row.
    """
    source = call.inputs[0]
    dim = call.literal("dim", -1)
    assert isinstance(dim, int)
    length = source.shape[dim] if source.shape else 1
    if length <= 4096:
        return (INDEX_BYTES * length,)
    count, itemsize_bytes = source.elements, source.itemsize_bytes
    sorted_bytes = INDEX_BYTES * count, (INDEX_BYTES + itemsize_bytes) * count
    if 1 < count // length < 128:
        return (*sorted_bytes, INDEX_BYTES * count, itemsize_bytes * count)
    return sorted_bytes


@rule("aten.randperm")
def randperm(call: Call, chip: Chip) -> tuple[int, ...]:
    """Random keys, sorted (cuda/Randperm.cu)."""
    count = call.outputs[0].elements
    return (INDEX_BYTES * count,) * 3 + (2 * INDEX_BYTES * count,)


def norms_of_list(call: Call, chip: Chip, *, chunk: int) -> tuple[int, ...]:
    """One partial norm for each chunk of the longest tensor, for every tensor."""
    tensors = call.inputs
    chunks = max((-(-tensor.elements // chunk) for tensor in tensors), default=0)
    return (len(tensors) * chunks * FLOAT_BYTES,)


RULES["aten._foreach_norm"] = partial(norms_of_list, chunk=65536)
"""cuda/ForeachReduceOp.cu, whose chunks have 65,536 elements (cuda/MultiTensorApply.cuh)."""


def is_blas_matrix(tensor: TensorSpec) -> bool:
    """cuBLAS takes the last two dimensions as they are: rows or columns without gaps."""
    (rows, columns), (down, across) = tensor.shape[-2:], tensor.stride[-2:]
    if rows == 0 or columns == 0:
        return True
    by_rows = (across == 1 or columns == 1) and down >= max(1, columns)
    by_columns = (down == 1 or rows == 1) and across >= max(1, rows)
    return by_rows or by_columns or rows == columns == 1


def is_contiguous(tensor: TensorSpec, order: tuple[int, ...]) -> bool:
    """The dimensions, in this order, follow one another without gaps."""
    expected = 1
    for dim in reversed(order):
        if tensor.shape[dim] != 1 and tensor.stride[dim] != expected:
            return False
        expected *= tensor.shape[dim]
    return True

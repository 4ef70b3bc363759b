"""How many kernels an operator launches: the host takes its time for each, and so does the device.

Most launch one. The table holds those that launch more, as counted in PyTorch's CUDA sources
(aten/src/ATen/native/cuda, or as named); where the count depends on shapes, the case is named.
Copies to the host that an operator waits for are in it, fills by the driver between the kernels of
cub are not. cub takes two kernels to add up many elements, to scan or to select (it sets up first),
and to sort two and one for each 8 bits, but one alone where there are few. Lists of tensors go to
the device in as few kernels as their addresses fit (`multi_tensor_launches`).
"""

from math import ceil

from torchtally.timing.constants import (
    ACCUMULATING_PUT,
    CAT_TENSORS,
    EMBEDDING_SORTED,
    EMBEDDING_SORTS_ABOVE,
)
from torchtally.timing.roofline.lists import ON_LISTS, list_launches
from torchtally.trace import Call
from torchtally.work import Cost, Kind, cost_of

SEVERAL: dict[str, int] = {
    # group_norm_kernel.cu: moments, their use per channel, the result; backward sums, the use of
    # each channel and of each group, the gradient of the input, those of weight and bias.
    "native_group_norm": 3,
    "native_group_norm_backward": 5,
    # Normalization.cu: statistics, running statistics, the result. Backward is one kernel, but two
    # where channels are last.
    "native_batch_norm": 3,
    "_native_batch_norm_legit": 3,
    "_batch_norm_with_update": 3,
    # SoftMax.cu: the gradient times the result first.
    "_softmax_backward_data": 2,
    # PadNd.cpp: the padding first, everywhere.
    "constant_pad_nd": 2,
    # LinearAlgebra.cpp: what the product is added to is copied into the result first.
    "baddbmm": 2,
    # Loss.cpp: log_sigmoid, 1 - target, times the input, their difference, its mean.
    "binary_cross_entropy_with_logits": 5,
    # Gradients start as zeros: Loss.cu, NLLLoss2d.cu, DilatedMaxPool2d.cu.
    "nll_loss_backward": 2,
    "nll_loss2d_backward": 2,
    "max_pool2d_with_indices_backward": 2,
    "index_select_backward": 2,
    "slice_backward": 2,
    "select_backward": 2,
    # SortStable.cu, one long row of 32 bits: places, a sort. Up to 2048 elements: 4 kernels.
    "sort": 7,
    "argsort": 7,
    "msort": 7,
    # TensorTopK.cu: a block for each row, then they are sorted. Few long rows take about 20.
    "topk": 2,
    # UniqueCub.cu, 64 bits without inverse: a sort, a selection, its length to the host.
    "_unique": 13,
    "_unique2": 13,
    "unique_consecutive": 3,
    # An estimate: thrust's kernels are not counted.
    "unique_dim": 14,
    # Randperm.cu, 32 random bits: places, bits, a sort, islands of equal ones.
    "randperm": 9,
    # Distributions.cpp, one draw: 10 kernels of checks, random numbers, a quotient, its maximum.
    "multinomial": 13,
    # Nonzero.cu: a count, which goes to the host, a selection, coordinates. Masks go by it.
    "nonzero": 5,
    "masked_select": 6,
    # IndexKernel.cu: a scan of the mask, a check, the result.
    "masked_scatter": 4,
    # ScanUtils.cuh: of one row; of several one kernel.
    "cumsum": 2,
    "cumprod": 2,
    # LossCTC.cu: lengths and offsets to the device, alpha; backward also two fills, beta, the
    # gradient and zeros for the padding, of a small problem.
    "_ctc_loss": 4,
    "_ctc_loss_backward": 8,
}

NORM_BACKWARD = frozenset(("native_layer_norm_backward", "_fused_rms_norm_backward"))
"""The gradient of the input; those of weight and bias, where they are wanted:
layer_norm_kernel.cu."""


def launches(call: Call) -> int:
    """Kernels (or copies) that one call sends to the device. 0 for views and what is not counted.

    0 as well for calls that touch no byte: an operator on no elements launches nothing.
    """
    return launches_of(call, *cost_of(call))


def launches_of(call: Call, kind: Kind, cost: Cost) -> int:
    """The same, for a caller who knows the call's cost already."""
    if kind.is_free or not (cost.bytes or cost.flops):
        return 0
    if call.fused is not None:
        return 1
    name = call.plain_name
    if name.startswith(ON_LISTS):
        return list_launches(call, name)
    if kind is Kind.CONVOLUTION:
        return convolution_launches(call)
    if kind is Kind.ATTENTION:
        return attention_launches(call)
    if kind is Kind.RECURRENT:
        return recurrent_launches(call)
    if name in ("embedding_dense_backward", "embedding_backward"):
        return embedding_launches(call)
    if name in ("index_put", "_index_put_impl", "_unsafe_index_put"):
        return ACCUMULATING_PUT if call.literal("accumulate") is True else 1
    if name in ("cat", "concat", "stack", "_stack", "hstack", "vstack"):
        return max(1, ceil(len(call.inputs) / CAT_TENSORS))
    if name in NORM_BACKWARD:
        return 1 + (len(call.outputs) > 1)
    if name == "addmm":
        return 1 if len(call.inputs[0].shape) < 2 else 2
    return SEVERAL.get(name, 1)


def is_in_graph(call: Call) -> bool:
    """A CUDA graph launches its kernels with the others that it has captured."""
    return call.literal("in_graph") is True


def convolution_launches(call: Call) -> int:
    """A kernel, and one that adds the bias; backward for each gradient wanted, the bias's is a sum.

    Those that cuDNN runs around its own are not counted: it launches them by itself.
    """
    if "backward" not in call.name:
        return 2 if call.tensors("bias") else 1
    flags = call.literal("output_mask")
    return max(1, sum(map(bool, flags))) if isinstance(flags, tuple) else len(call.outputs) or 1


def attention_launches(call: Call) -> int:
    """Unfused: two products, scale and mask, softmax."""
    names = ("flash", "varlen", "overrideable", "cudnn", "efficient", "flex")
    name = next((name for name in names if name in call.name), None)
    if name is None:
        return 4
    is_backward = "backward" in call.name
    return fused_attention_launches(call.inputs[0].dtype, name, is_backward=is_backward)


def fused_attention_launches(dtype: str, kernel: str, *, is_backward: bool) -> int:
    """One. Backward of flash: rows of grad * out are added up first, and the gradient of the
    queries, which all blocks add to in float32, is converted last (flash_bwd_launch_template.h);
    cuDNN's is assumed to do the same. Memory-efficient: all in one, but in float32 grad * out, its
    sum and a copy come first (attention_backward.cu). Flex: rows of grad * out are added up first.
    """
    if not is_backward:
        return 1
    if kernel == "efficient":
        return 4 if dtype == "float32" else 1
    return 2 if kernel == "flex" else 3


def recurrent_launches(call: Call) -> int:
    """The inputs' product of each matrix, and for each step the hidden state's and the gates."""
    steps, _ = steps_and_sequences(call)
    matrices = sum(len(spec.shape) == 2 for spec in call.tensors("weight") or call.inputs[1:])
    pairs = max(1, matrices // 2)
    times = 2 if "backward" in call.name else 1
    return times * pairs * (1 + 2 * steps)


def steps_and_sequences(call: Call) -> tuple[int, int]:
    """(S, B). Packed sequences: as many steps as the longest has, the mean of sequences in each."""
    shape = call.inputs[0].shape
    sizes = call.literal("batch_sizes")
    if isinstance(sizes, tuple) and sizes:
        return len(sizes), max(1, -(-shape[0] // len(sizes)))
    if len(shape) < 3:
        return 1, max(1, shape[0] if len(shape) == 2 else 1)
    first, second = shape[0], shape[1]
    return (second, first) if call.literal("batch_first") is True else (first, second)


def embedding_launches(call: Call) -> int:
    return EMBEDDING_SORTED if indices_of(call) > EMBEDDING_SORTS_ABOVE else 2


def indices_of(call: Call) -> int:
    """How many rows an embedding's gradient adds up."""
    indices = call.tensors("indices")
    return indices[0].elements if indices else call.inputs[-1].elements

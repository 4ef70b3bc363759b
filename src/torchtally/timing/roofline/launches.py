"""How many kernels an operator launches: the host takes its time for each, and so does the device.

Most launch one. `composed` has those that launch more, and what depends on shapes is here. Lists of
tensors go to the device in as few kernels as their addresses fit (`multi_tensor_launches`).
"""

from math import ceil

from torchtally.timing.constants import (
    ACCUMULATING_PUT,
    CAT_TENSORS,
    EMBEDDING_SORTED,
    EMBEDDING_SORTS_ABOVE,
)
from torchtally.timing.roofline.composed import Composed, Formula, composed
from torchtally.timing.roofline.lists import ON_LISTS, list_launches
from torchtally.trace import Call
from torchtally.work import Cost, Kind, cost_of


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
    if name == "addmm":
        return 1 if len(call.inputs[0].shape) < 2 else 2
    return launches_by_shape(call, composed(name))


def launches_by_shape(call: Call, row: Composed) -> int:
    match row.formula:
        case Formula.EMBEDDING_BACKWARD:
            return embedding_launches(call)
        case Formula.ACCUMULATION:
            return ACCUMULATING_PUT if call.literal("accumulate") is True else 1
        case Formula.CONCATENATION:
            return max(1, ceil(len(call.inputs) / CAT_TENSORS))
        case Formula.LAYER_NORM_BACKWARD:
            return 1 + (len(call.outputs) > 1)
        case _:
            return row.launches


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

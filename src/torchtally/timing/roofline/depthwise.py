"""Depthwise convolutions: every channel has a filter of its own, so nothing is a matrix product.

A tap is one filter position of one element of the result.

cuDNN's kernels go by bytes. PyTorch's own (aten/src/ATen/native/cuda/DepthwiseConv2d.cu) run where
`_select_conv_backend` finds cuDNN's slower, in float32 always and with large filters in any dtype:
a thread computes one element of the result, and for each filter position loads two numbers, which
holds it up long before the arithmetic or device memory does.
"""

from itertools import compress
from math import ceil, prod

from torchtally.chips import Chip
from torchtally.timing.constants import (
    CUDNN_FILTER_GRADIENT_FACTOR,
    CUDNN_TAPS_PER_CLOCK,
    FILTER_GRADIENT_FACTOR,
    KERNEL_S,
    TAPS_PER_CLOCK,
    TAPS_PER_ELEMENT,
)
from torchtally.timing.roofline.kernel import Kernel
from torchtally.timing.roofline.limits import bound_kernel
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s, vector_peak_flop_per_s
from torchtally.trace import Call, TensorSpec
from torchtally.work import Cost
from torchtally.work.rule import integers, mask

WARP = 32
"""Threads that take an image's positions in turn, in the gradient of the filter."""


CUDNN_MIN_CHANNELS = 32
CUDNN_MIN_WIDTH = 7


def depthwise_kernel(call: Call, cost: Cost, chip: Chip) -> Kernel:
    """Forward: one kernel. Backward: one for each gradient wanted."""
    wanted = wanted_taps(call)
    memory_s = cost.bytes / bandwidth_bytes_per_s(chip)
    if chip.multiprocessors is None or chip.boost_clock_hz is None:
        peak = vector_peak_flop_per_s(call.tensor("weight").dtype, chip)
        compute_s = cost.flops / peak if peak else 0.0
    else:
        per_clock: float = TAPS_PER_CLOCK
        if is_by_cudnn(call):
            wanted = cudnn_taps(call)
            per_clock = CUDNN_TAPS_PER_CLOCK
        compute_s = sum(wanted) / (per_clock * chip.multiprocessors * chip.boost_clock_hz)
    overhead_s = KERNEL_S * max(1, len(wanted))
    return bound_kernel(compute_s=compute_s, memory_s=memory_s, overhead_s=overhead_s)


def wanted_taps(call: Call) -> list[float]:
    """Taps of each kernel of PyTorch's own: of the result, or of both gradients as wanted."""
    taps = prod(call.tensor("weight").shape[2:])
    if "backward" not in call.name:
        return [call.outputs[0].elements * (taps + TAPS_PER_ELEMENT)] if call.outputs else []
    gradient, source = call.tensor("grad_output"), source_of(call)
    images, positions = prod(gradient.shape[:2]), prod(gradient.shape[2:])
    of_input = gradient.elements * taps + source.elements * TAPS_PER_ELEMENT
    of_filter = FILTER_GRADIENT_FACTOR * images * WARP * ceil(positions / WARP) * taps
    return list(compress((of_input, of_filter), mask(call, "output_mask", 2)[:2]))


def cudnn_taps(call: Call) -> list[float]:
    """The same of cuDNN's."""
    taps = float(prod(call.tensor("weight").shape[2:]))
    if "backward" not in call.name:
        return [call.outputs[0].elements * taps] if call.outputs else []
    elements = call.tensor("grad_output").elements * taps
    gradients = (elements, CUDNN_FILTER_GRADIENT_FACTOR * elements)
    return list(compress(gradients, mask(call, "output_mask", 2)[:2]))


def source_of(call: Call) -> TensorSpec:
    return call.tensor("input") if call.tensors("input") else call.tensor("self")


def is_by_cudnn(call: Call) -> bool:
    """Whether PyTorch takes cuDNN (`use_cudnn_depthwise` in aten/src/ATen/native/Convolution.cpp).

    With 5 dimensions there is no kernel of PyTorch's own but for `conv_depthwise3d`.
    """
    source, weight = source_of(call), call.tensor("weight")
    if "depthwise" in call.name or len(source.shape) not in (3, 4):
        return "depthwise" not in call.name
    if is_channels_last(source):
        return True
    # One dimension is taken as two, of which the first has one position.
    height, width = (1, *source.shape[2:])[-2:]
    steps = integers(call, "stride") or (1,)
    dilations = integers(call, "dilation")
    return (
        source.dtype == "float16"
        and source.shape[1] >= CUDNN_MIN_CHANNELS
        and all(step == 1 for step in dilations)
        and (steps[0] == steps[-1] or height == 1)
        and is_fast_by_cudnn(source, weight, height, width, steps[-1])
    )


def is_fast_by_cudnn(
    source: TensorSpec, weight: TensorSpec, height: int, width: int, step: int
) -> bool:
    """`check_cudnn_depthwise_workload_with_filter` there, which PyTorch's developers measured."""
    batch, channels = source.shape[:2]
    filters = set(weight.shape[2:])
    if height == 1 and step == 1:
        return True
    if len(filters) > 1 or not filters <= {1, 3, 5} or width < CUDNN_MIN_WIDTH:
        return False
    if step == 1:
        return True
    if filters == {1}:
        few = (width <= 28) if batch == 1 else batch <= 16 and channels >= 128 and width <= 7
        return step == 2 and few
    return step == 2 and (batch == 1 or channels >= 512 or (channels >= 256 and width >= 28))


def is_channels_last(spec: TensorSpec) -> bool:
    """Channels lie together: of one position alone both layouts are the same."""
    return spec.shape[1] > 1 and spec.stride[1] == 1 and prod(spec.shape[2:]) > 1

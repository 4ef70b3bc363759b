"""Copies that a convolution makes of operands in another layout than it computes in.

Input or weight with channels last has cuDNN compute so, and what lies otherwise is copied first
(native/ConvUtils.h, Convolution.cpp, cudnn/ConvShared.cpp).
Input and gradient are copied before the results are allocated, and the copies held until then; the
weight's copy comes after them.
"""

from collections.abc import Sequence

from torchtally.chips import Chip
from torchtally.memory.workspace.scratch import is_contiguous, rule, rule_before_results
from torchtally.trace import Call

DIMENSIONS = (4, 5)
"""Of operands that can have channels last."""


@rule("aten.convolution", "aten.convolution_backward")
def of_weight(call: Call, chip: Chip) -> tuple[int, ...]:
    return copies(call, "weight")


@rule_before_results("aten.convolution")
def of_input(call: Call, chip: Chip) -> tuple[int, ...]:
    return copies(call, "input")


@rule_before_results("aten.convolution_backward")
def of_input_and_gradient(call: Call, chip: Chip) -> tuple[int, ...]:
    return copies(call, "input", "grad_output")


def copies(call: Call, *names: str) -> tuple[int, ...]:
    x, weight = call.tensor("input"), call.tensor("weight")
    if len(x.shape) not in DIMENSIONS:
        return ()
    is_last = x.dtype != "float64" and any(
        channels_are_last(spec.shape, spec.stride) for spec in (x, weight)
    )
    last = (0, *range(2, len(x.shape)), 1)
    order = last if is_last else tuple(range(len(x.shape)))
    operands = map(call.tensor, names)
    return tuple(
        spec.elements * spec.itemsize_bytes for spec in operands if not is_contiguous(spec, order)
    )


def channels_are_last(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether channels are last by the strides, and contiguous where they leave it open
    (c10/core/MemoryFormat.h).
    """
    if stride[1] == 0 or 0 in shape:
        return False
    least = 0
    for dim in (1, *range(len(shape) - 1, 1, -1), 0):
        if stride[dim] < least or (dim == 0 and least == stride[1]):
            return False
        least = stride[dim] * shape[dim]
    return True

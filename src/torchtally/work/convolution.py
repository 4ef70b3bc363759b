"""Convolutions, plain and transposed, grouped or not, forward and backward.

B: batch.  I, O: input and output channels.  G: groups.  X, Y: input and output positions.
k: filter positions.  A weight is (O, I/G, k), a transposed convolution's (I, O/G, k).

Every output element is a sum of I/G * k terms: 2 * B*O*Y * I/G*k. A transposed convolution is the
gradient of a plain one: every input element goes into O/G * k terms: 2 * B*I*X * O/G*k. Terms that
fall on padding are counted and a bias is not, as in `torch.utils.flop_counter`.
"""

from math import prod

from torchtally.trace import Call, TensorSpec
from torchtally.work.arithmetic import multiply_add_flops
from torchtally.work.cost import Cost
from torchtally.work.rule import Kind, is_set, mask, one_pass, result, rule

PLAIN = (
    "conv1d conv2d conv3d _convolution_mode cudnn_convolution cudnn_convolution_relu"
    " cudnn_convolution_add_relu miopen_convolution miopen_convolution_relu"
    " miopen_convolution_add_relu miopen_depthwise_convolution mkldnn_convolution"
    " _nnpack_spatial_convolution _slow_conv2d_forward thnn_conv2d slow_conv3d slow_conv3d_forward"
    " slow_conv_dilated2d slow_conv_dilated3d _conv_depthwise2d conv_depthwise3d"
)
TRANSPOSED = (
    "conv_transpose1d conv_transpose2d conv_transpose3d cudnn_convolution_transpose"
    " miopen_convolution_transpose slow_conv_transpose2d slow_conv_transpose3d"
)


def terms_of_weight_flops(weight: TensorSpec, elements: int) -> int:
    """`elements` is B*O*Y of a plain convolution, B*I*X of a transposed one."""
    return elements * prod(weight.shape[1:]) * multiply_add_flops(weight)


@rule(PLAIN, kind=Kind.CONVOLUTION)
def plain(call: Call) -> Cost:
    return one_pass(call, flops=terms_of_weight_flops(call.tensor("weight"), result(call).elements))


@rule(TRANSPOSED, kind=Kind.CONVOLUTION)
def transposed_convolution(call: Call) -> Cost:
    return one_pass(
        call, flops=terms_of_weight_flops(call.tensor("weight"), call.inputs[0].elements)
    )


@rule("convolution _convolution convolution_overrideable", kind=Kind.CONVOLUTION)
def convolution(call: Call) -> Cost:
    return transposed_convolution(call) if is_set(call, "transposed") else plain(call)


@rule(
    "convolution_backward convolution_backward_overrideable _slow_conv2d_backward",
    kind=Kind.CONVOLUTION,
)
def convolution_backward(call: Call) -> Cost:
    """Cost of as many terms as forward, for each of grad_input and grad_weight that is wanted."""
    forward_input = "input" if call.tensors("input") else "self"
    summed = forward_input if is_set(call, "transposed") else "grad_output"
    forward = terms_of_weight_flops(call.tensor("weight"), call.tensor(summed).elements)
    gradients = sum(mask(call, "output_mask", 3)[:2])
    return one_pass(call, flops=forward * gradients)


@rule("conv_tbc", kind=Kind.CONVOLUTION)
def conv_tbc(call: Call) -> Cost:
    """Time, batch, channels: the weight is (k, I, O)."""
    k, I, _ = call.tensor("weight").shape  # noqa: E741
    flops = result(call).elements * k * I * multiply_add_flops(call.tensor("weight"))
    return one_pass(call, flops=flops)

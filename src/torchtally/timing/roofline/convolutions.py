"""Convolutions as matrix products whose operands are read through the filter's window.

B: batch.  I, O: input and output channels.  G: groups.  X, Y: input and output positions.
k: filter positions.

cuDNN computes a convolution as an implicit product (NVIDIA, "Convolutional Layers User's Guide";
Chetlur et al., arXiv:1410.0759): per group,

    forward           (B*Y, I/G*k)   @ (I/G*k, O/G)
    gradient of input (B*X, O/G*k')  @ (O/G*k', I/G)     k': as many terms as FLOPs say
    gradient of filter (O/G, B*Y)    @ (B*Y, I/G*k)

Tensor cores take channels in eights (in TF32 in fours: here as eights), a first layer's three as
four; fewer are padded (the same guide, "Channels In And Out"). They read channels last. Tensors in
PyTorch's usual layout are transposed first and the result back, by kernels of their own (the same
guide, "Tensor Layouts In Memory: NCHW vs NHWC"). A depthwise convolution (one channel per group)
has no product worth the name: it goes by bytes. float32 uses TF32 where the call carries
("allow_tf32", True), as it does unless the script said otherwise (torch.backends.cudnn.allow_tf32
is true by default). Winograd's and FFT's algorithms, which multiply less, are not modelled.
"""

from itertools import compress
from math import ceil, prod

from torchtally.chips import Chip
from torchtally.timing.roofline.kernel import Kernel
from torchtally.timing.roofline.limits import KERNEL_S, bound_kernel
from torchtally.timing.roofline.products import Product, product_dtype, product_s
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s, vector_peak_flop_per_s
from torchtally.trace import Call, TensorSpec
from torchtally.work import Cost
from torchtally.work.rule import integer, mask


def convolution_kernel(call: Call, cost: Cost, chip: Chip) -> Kernel:
    """Forward: one product. Backward: one for each gradient wanted."""
    weight = call.tensor("weight")
    if is_depthwise(call, weight):
        return depthwise_kernel(call, cost, chip)
    compute_s = overhead_s = 0.0
    for product in implicit_products(call, cost):
        found_s, launches = product_s(product, chip)
        compute_s += found_s
        overhead_s += KERNEL_S * launches
    if needs_transposes(call, weight):
        moved = activations(call)
        transposed_bytes = 2 * sum(spec.bytes for spec in moved)
        compute_s += transposed_bytes / bandwidth_bytes_per_s(chip)
        overhead_s += KERNEL_S * len(moved)
    memory_s = cost.bytes / bandwidth_bytes_per_s(chip)
    return bound_kernel(compute_s=compute_s, memory_s=memory_s, overhead_s=overhead_s)


def is_backward(call: Call) -> bool:
    return "backward" in call.name


def groups_of(call: Call) -> int:
    return max(1, integer(call, "groups", 1))


def forward_input(call: Call) -> TensorSpec:
    for name in ("input", "self"):
        if call.tensors(name):
            return call.tensor(name)
    return call.inputs[0]


def is_depthwise(call: Call, weight: TensorSpec) -> bool:
    return "depthwise" in call.name or (groups_of(call) > 1 and weight.shape[1] == 1)


def depthwise_kernel(call: Call, cost: Cost, chip: Chip) -> Kernel:
    """By bytes, or by the vector units."""
    peak = vector_peak_flop_per_s(call.tensor("weight").dtype, chip)
    gradients = sum(gradient_flags(call)) if is_backward(call) else 1
    return bound_kernel(
        compute_s=cost.flops / peak if peak else 0.0,
        memory_s=cost.bytes / bandwidth_bytes_per_s(chip),
        overhead_s=KERNEL_S * max(1, gradients),
    )


def gradient_flags(call: Call) -> tuple[bool, ...]:
    """(input's gradient wanted, filter's gradient wanted)."""
    return mask(call, "output_mask", 2)[:2]


def implicit_products(call: Call, cost: Cost) -> tuple[Product, ...]:
    """The products that one call runs; their FLOPs add up to the call's."""
    weight, source = call.tensor("weight"), forward_input(call)
    count = sum(gradient_flags(call)) if is_backward(call) else 1
    if count == 0 or cost.flops == 0:
        return ()
    flops = ceil(cost.flops / count * padding_factor(call, weight))
    if not is_backward(call):
        result = call.outputs[0] if call.outputs else source
        return (rows_by_channels(call, weight, result, flops),)
    gradients = (
        rows_by_channels(call, weight, source, flops),
        filter_gradient(call, weight, flops),
    )
    return tuple(compress(gradients, gradient_flags(call)))


def padded_channels(channels: int) -> int:
    """Tensor cores take 8 channels at a time; of inputs with few, 4."""
    return 4 if channels <= 4 else 8 * ceil(channels / 8)


def padding_factor(call: Call, weight: TensorSpec) -> float:
    """Executed over counted work of a convolution: tensor cores multiply padded channels, too."""
    channels = weight.shape[1]
    if not channels or not uses_tensor_cores(call, weight):
        return 1.0
    return padded_channels(channels) / channels


def positions_and_channels(spec: TensorSpec) -> tuple[int, int]:
    """(B * positions, channels) of a (B, channels, positions...) tensor."""
    channels = spec.shape[1] if len(spec.shape) > 1 else 1
    return spec.elements // max(1, channels), channels


def rows_by_channels(call: Call, weight: TensorSpec, result: TensorSpec, flops: int) -> Product:
    """A row for every position of the result, a column for every channel of a group."""
    G = groups_of(call)
    rows, channels = positions_and_channels(result)
    return with_depth(
        call, weight, groups=G, rows=max(1, rows), columns=max(1, channels // G), flops=flops
    )


def filter_gradient(call: Call, weight: TensorSpec, flops: int) -> Product:
    """A row for every channel of a group, a column for every place of its filter."""
    G = groups_of(call)
    rows, columns = max(1, weight.shape[0] // G), max(1, prod(weight.shape[1:]))
    return with_depth(call, weight, groups=G, rows=rows, columns=columns, flops=flops)


def with_depth(
    call: Call, weight: TensorSpec, *, groups: int, rows: int, columns: int, flops: int
) -> Product:
    """K follows from the FLOPs. Rows of memory are channels: cuDNN pads those that are unaligned,
    so none runs at the rate of an unaligned product.
    """
    dtype, itemsize_bytes = product_dtype(call, weight)
    K = max(1, ceil(flops / (2 * groups * rows * columns)))
    return Product(groups, rows, columns, K, dtype, itemsize_bytes)


def activations(call: Call) -> list[TensorSpec]:
    """The tensors of positions that go in and out: not filters and biases."""
    going_in = [spec for spec in call.inputs if spec.argument in ("input", "self", "grad_output")]
    gives_positions = not is_backward(call) or gradient_flags(call)[0]
    return going_in + list(call.outputs[:1] if gives_positions else ())


def uses_tensor_cores(call: Call, weight: TensorSpec) -> bool:
    dtype, _ = product_dtype(call, weight)
    return dtype not in ("float32", "float64")


def needs_transposes(call: Call, weight: TensorSpec) -> bool:
    """Channels are not innermost, in a dtype that tensor cores multiply."""
    source = forward_input(call)
    is_channels_first = len(source.shape) > 2 and source.shape[1] > 1 and source.stride[1] != 1
    return is_channels_first and uses_tensor_cores(call, weight)

"""Convolutions as matrix products whose operands are read through the filter's window.

B: batch.  I, O: input and output channels.  G: groups.  X, Y: input and output positions.
k: filter positions.

cuDNN computes a convolution as an implicit product (NVIDIA, "Convolutional Layers User's Guide";
Chetlur et al., arXiv:1410.0759): per group,

    forward           (B*Y, I/G*k)   @ (I/G*k, O/G)
    gradient of input (B*X, O/G*k')  @ (O/G*k', I/G)     k': as many terms as FLOPs say
    gradient of filter (O/G, B*Y)    @ (B*Y, I/G*k)

Tensor cores take channels in eights (in TF32 in fours: here as eights); fewer are padded (the same
guide, "Channels In And Out"). They read channels last. Tensors in PyTorch's usual layout are
brought into that one first and the result back, by kernels of their own, and so is the bias added
(`conversions.py`). Depthwise convolutions (one channel per group) are in `depthwise.py`. float32
uses TF32 where the call carries ("allow_tf32", True), as it does unless the script said otherwise
(torch.backends.cudnn.allow_tf32 is true by default). Winograd's and FFT's algorithms, which
multiply less, are not modelled.
"""

from dataclasses import replace
from itertools import compress
from math import ceil, prod

from torchtally.chips import Chip
from torchtally.timing.constants import ALIGNMENT_BYTES, DEPTH_BYTES, KERNEL_S
from torchtally.timing.roofline.conversions import (
    READS_CHANNELS_FIRST,
    bias_gradient_s,
    bias_s,
    conversions_s,
    padded_channels,
)
from torchtally.timing.roofline.depthwise import depthwise_kernel
from torchtally.timing.roofline.kernel import Kernel
from torchtally.timing.roofline.limits import bound_kernel
from torchtally.timing.roofline.products import Product, product_dtype, product_s
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s, limited_byte_s
from torchtally.trace import Call, TensorSpec
from torchtally.work import Cost
from torchtally.work.rule import integer, integers, mask


def convolution_kernel(call: Call, cost: Cost, chip: Chip) -> Kernel:
    """Forward: one product. Backward: one for each gradient wanted."""
    weight = call.tensor("weight")
    if is_depthwise(call, weight):
        return depthwise_kernel(call, cost, chip)
    compute_s = overhead_s = 0.0
    products = implicit_products(call, cost)
    for product in products:
        found_s, launches = product_s(product, chip)
        compute_s += found_s
        overhead_s += KERNEL_S * launches
    if products:
        compute_s += cost.bytes * limited_byte_s(products[0].dtype, chip)
    compute_s += besides_s(call, weight, chip)
    memory_s = cost.bytes / bandwidth_bytes_per_s(chip)
    return bound_kernel(compute_s=compute_s, memory_s=memory_s, overhead_s=overhead_s)


def besides_s(call: Call, weight: TensorSpec, chip: Chip) -> float:
    """Kernels around the products: they do not overlap with them."""
    seconds = 0.0
    if uses_tensor_cores(call, weight) and not reads_channels_first(call, weight, chip):
        seconds += sum(conversions_s(tensors, chip) for tensors in conversions(call, weight))
    if is_backward(call):
        if mask(call, "output_mask", 3)[2]:
            seconds += bias_gradient_s(call.tensor("grad_output"), chip)
    elif call.tensors("bias") and call.outputs:
        seconds += bias_s(call.outputs[0], chip)
    return seconds


def reads_channels_first(call: Call, weight: TensorSpec, chip: Chip) -> bool:
    """Each image is a matrix of channels by positions, which tensor cores multiply as it lies."""
    if prod(weight.shape[2:]) > 1 or chip.sm.design not in READS_CHANNELS_FIRST:
        return False
    row_bytes = prod(forward_input(call).shape[2:]) * weight.itemsize_bytes
    is_whole = all(step == 1 for step in integers(call, "stride"))
    return is_whole and row_bytes % ALIGNMENT_BYTES == 0


def conversions(call: Call, weight: TensorSpec) -> list[tuple[TensorSpec, ...]]:
    """What each product of a call takes in and gives out."""
    source = forward_input(call)
    if not is_backward(call):
        return [(source, weight, *call.outputs[:1])]
    gradient = call.tensor("grad_output")
    products = [(gradient, weight, source), (gradient, source, weight)]
    return list(compress(products, gradient_flags(call)))


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
    """A row for every channel of a group, a column for every place of its filter. What is summed
    along is positions: its rows are not in pieces.
    """
    G = groups_of(call)
    rows, columns = max(1, weight.shape[0] // G), max(1, prod(weight.shape[1:]))
    product = with_depth(call, weight, groups=G, rows=rows, columns=columns, flops=flops)
    return replace(product, piece_bytes=DEPTH_BYTES)


def with_depth(
    call: Call, weight: TensorSpec, *, groups: int, rows: int, columns: int, flops: int
) -> Product:
    """K follows from the FLOPs. Rows of memory are channels: cuDNN pads those that are unaligned,
    so none runs at the rate of an unaligned product; but channels of one position alone lie
    together.
    """
    dtype, itemsize_bytes = product_dtype(call, weight)
    K = max(1, ceil(flops / (2 * groups * rows * columns)))
    piece_bytes = DEPTH_BYTES
    if uses_tensor_cores(call, weight) and prod(weight.shape[2:]) > 1 and not is_tried(call):
        piece_bytes = min(DEPTH_BYTES, padded_channels(weight.shape[1]) * itemsize_bytes)
    return Product(
        groups, rows, columns, K, dtype, itemsize_bytes, piece_bytes=piece_bytes,
        is_convolution=True,
    )  # fmt: skip


def is_tried(call: Call) -> bool:
    """cuDNN tries all its kernels for this convolution, and takes the fastest: it has some that are
    made for few channels (first_layer_fwd_kernel in NVIDIA's own lists of kernels' names).

    By `torch.backends.cudnn.benchmark`, as timm's tables have it: 1024 images in float16 take an
    RTX 4090 56, 91, 201 and 352 ms in ResNet-18, 34, 50 and VGG-16 with channels last, here 61,
    100, 208 and 364, where 71, 110, 219 and 373 counted the first layer piece by piece
    (huggingface/pytorch-image-models @aa4b585, results/benchmark-infer-amp-nhwc-pt240-cu124-
    rtx4090.csv).
    """
    return call.literal("benchmark") is True


def uses_tensor_cores(call: Call, weight: TensorSpec) -> bool:
    dtype, _ = product_dtype(call, weight)
    return dtype not in ("float32", "float64")

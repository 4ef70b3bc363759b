"""What a convolution moves besides its products: tensors brought into tensor cores' layout, biases.

Tensor cores read channels last, in eights (`convolutions.py`). cuDNN brings each operand into that
form by a kernel of its own and the result back, and each call of cuDNN does so for itself: the
gradient of the output is converted for the gradient of the input and again for that of the filter.
In profiles of PyTorch 2.6 on an H100 (owlv2-large and ViT in AMD-AGI/TraceLens) the first layer is
a fill, nchwToNhwcKernel of the input and of the filter, a product on 8 channels, nhwcToNchwKernel,
and an elementwise kernel.

That last one is the bias. PyTorch adds it in place behind cuDNN, and sums the output's gradient for
it in backward (aten/src/ATen/native/Convolution.cpp: `output.add_(reshape_bias(...))`,
`grad_output.sum`).
"""

from collections.abc import Iterable
from math import ceil

from torchtally.chips import Chip
from torchtally.timing.constants import (
    KERNEL_S,
    PADDED_PLACES_PER_S,
    PLACES_PER_S,
    TENSOR_CORE_CHANNELS,
)
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s
from torchtally.timing.roofline.strided import finding_s
from torchtally.trace import TensorSpec

READS_CHANNELS_FIRST = frozenset({"GA10x", "AD10x", "GH100", "GB20x"})
"""Designs of dies where filters of one position read and write channels first as they lie, a
product of the filter with each image, if each channel's positions begin on 16 bytes and none is
skipped.

On an H100 64 images of 56 x 56 and of 28 x 28 take as long with channels first as with channels
last, in 16 bits as in TF32, of 14 x 14 only in TF32 (784 bytes), and with every other position five
times as long (a bench, cuDNN 9.19; kernels' names in tests/truth/corpus, resnet50-fp32, are those
of products, xmma_gemm_..._nn, with no conversion beside them). On an RTX 4090 thirteen forward
passes of timm's networks with channels first take 0.02 to 0.12 ms an image longer than with
channels last, and by this rule 0.84 to 1.35 of that, 1.0 in the median; if no filter of one
position was converted 0.33 to 1.14, and 0.57 (huggingface/pytorch-image-models @aa4b585, results/
benchmark-infer-amp-{nchw,nhwc}-pt240-cu124-rtx4090.csv: ResNets of 160 to 288 pixels, VGG-16,
DLA-60, DarkNet-53). Eight of them come to 0.90 to 1.04 of what they take an RTX 5090, 0.99 in the
median, and to 1.07 to 1.26 if all are converted (benchmark-infer-amp-nchw-pt291-cu130-5090.csv
there). cuDNN 8.3 still converted all on an RTX 3090 (timm's trainings)."""

CONVERTED_AT_BANDWIDTH = frozenset({"GA10x", "AD10x", "GB20x"})
"""Where kernels that convert are held up by memory alone: 1000 images in float16 take VGG-16 on an
RTX 4090 118 ms longer with channels first (the same tables), a read and a write of what filters of
several positions take in and give out; and an RTX 5090 293 ms, here 303."""


def padded_channels(channels: int) -> int:
    return TENSOR_CORE_CHANNELS * ceil(channels / TENSOR_CORE_CHANNELS)


def conversions_s(tensors: Iterable[TensorSpec], chip: Chip) -> float:
    """Kernels that bring each of them into tensor cores' layout, or back from it."""
    return sum(conversion_s(spec, chip) for spec in tensors if needs_conversion(spec))


def needs_conversion(spec: TensorSpec) -> bool:
    return is_channels_first(spec) or is_padded(spec)


def is_padded(spec: TensorSpec) -> bool:
    """Channels last are read in twos and fours as well (CUTLASS's kernels of align2, align4)."""
    return channels_of(spec) % (TENSOR_CORE_CHANNELS if is_channels_first(spec) else 2) != 0


def channels_of(spec: TensorSpec) -> int:
    return spec.shape[1] if len(spec.shape) > 1 else TENSOR_CORE_CHANNELS


def is_channels_first(spec: TensorSpec) -> bool:
    """Channels are not innermost; where there is one position or one channel, they are in both."""
    positions = spec.elements // max(1, spec.shape[0] * spec.shape[1]) if spec.elements else 1
    return len(spec.shape) > 2 and positions > 1 and spec.shape[1] > 1 and spec.stride[1] != 1


def conversion_s(spec: TensorSpec, chip: Chip) -> float:
    channels = channels_of(spec)
    padded_elements = spec.elements * padded_channels(channels) // max(1, channels)
    moved_bytes = spec.bytes + padded_elements * spec.itemsize_bytes
    found_s = 0.0
    if is_padded(spec):
        found_s = finding_s(padded_elements, PADDED_PLACES_PER_S, chip)
    elif chip.sm.design not in CONVERTED_AT_BANDWIDTH:
        found_s = finding_s(padded_elements, PLACES_PER_S, chip)
    return moved_bytes / bandwidth_bytes_per_s(chip) + found_s + KERNEL_S


def bias_s(result: TensorSpec, chip: Chip) -> float:
    """The result read and written again. Its channels and the bias do not lie alike."""
    found_s = finding_s(result.elements, PLACES_PER_S, chip)
    return 2 * result.bytes / bandwidth_bytes_per_s(chip) + found_s + KERNEL_S


def bias_gradient_s(grad_output: TensorSpec, chip: Chip) -> float:
    return grad_output.bytes / bandwidth_bytes_per_s(chip) + KERNEL_S

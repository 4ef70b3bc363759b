"""Which convolutions are measured: the layers of a ResNet, the patches of a vision transformer.

B: batch.  I, O: input and output channels.  X: input side.  k: filter side.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from torchtally.bench.work import OpCall, Plan, work

aten = torch.ops.aten


class Conv(NamedTuple):
    I: int  # noqa: E741
    O: int  # noqa: E741
    X: int
    k: int
    stride: int = 1
    groups: int = 1

    def flops(self, B: int) -> int:
        Y = self.X // self.stride
        return 2 * B * self.O * Y * Y * self.I // self.groups * self.k * self.k


LAYERS = (
    Conv(3, 64, 224, 7, 2), Conv(3, 384, 224, 16, 16), Conv(64, 64, 56, 1),
    Conv(64, 64, 56, 3), Conv(64, 256, 56, 1), Conv(256, 64, 56, 1), Conv(128, 128, 28, 3),
    Conv(512, 128, 28, 1), Conv(256, 512, 56, 1, 2), Conv(256, 256, 14, 3),
    Conv(256, 1024, 14, 1), Conv(512, 512, 7, 3), Conv(2048, 512, 7, 1), Conv(512, 2048, 7, 1),
    Conv(16, 16, 32, 3), Conv(32, 32, 16, 3), Conv(144, 144, 56, 3, 1, 144),
)  # fmt: skip
BATCHES = (1, 4, 16, 64)


def operands(
    layer: Conv, B: int, dtype: torch.dtype, device: torch.device, format: torch.memory_format
) -> tuple[torch.Tensor, torch.Tensor]:
    image = torch.randn(B, layer.I, layer.X, layer.X, device=device).to(dtype)
    weight = torch.randn(layer.O, layer.I // layer.groups, layer.k, layer.k, device=device)
    return image.to(memory_format=format), weight.to(dtype).to(memory_format=format)


def settings(layer: Conv) -> tuple[object, ...]:
    """Stride, padding, dilation, not transposed, output padding, groups."""
    pad = 0 if layer.stride == layer.k else layer.k // 2
    return [layer.stride] * 2, [pad] * 2, [1, 1], False, [0, 0], layer.groups


def forward(layer: Conv, *batch: Any) -> OpCall:
    image, weight = operands(layer, *batch)
    return work(aten.convolution.default, image, weight, None, *settings(layer))


def backward(layer: Conv, *batch: Any) -> OpCall:
    image, weight = operands(layer, *batch)
    out = aten.convolution.default(image, weight, None, *settings(layer))
    needs_gradient = [layer.I > 3, True, False]  # the input image needs no gradient
    return work(
        aten.convolution_backward.default,
        torch.ones_like(out), image, weight, None, *settings(layer), needs_gradient,
    )  # fmt: skip


def convolutions(
    device: torch.device, dtype: torch.dtype, most_flops: float, least_flops: float = 0.0
) -> Iterator[Plan]:
    formats = [torch.contiguous_format]
    if device.type == "cuda":
        formats.append(torch.channels_last)
    for layer in LAYERS:
        for B in BATCHES:
            if least_flops <= 2 * layer.flops(B) <= most_flops:
                for format in formats:
                    yield partial(forward, layer, B, dtype, device, format)
                    yield partial(backward, layer, B, dtype, device, format)

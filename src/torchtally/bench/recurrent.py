"""Which recurrent layers are measured: oneDNN's LSTM, a layer in one direction.

T: steps.  B: batch.  I: input size.  H: hidden size.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.bench.work import OpCall, Plan, work

aten = torch.ops.aten

LSTM = 2
"""As in `torch.backends.cudnn.rnn`."""
Literals = tuple[bool | int | list[int], ...]
SHAPES = (
    (16, 4, 32, 32), (16, 8, 64, 64), (32, 8, 128, 128), (64, 8, 256, 256), (32, 16, 384, 384),
    (64, 16, 512, 256), (32, 32, 512, 512), (128, 32, 256, 512), (128, 32, 1024, 1024),
)  # fmt: skip
"""(T, B, I, H), by bytes moved. The work grows with them."""


Build = Callable[[tuple[int, int, int, int], torch.dtype, torch.device], OpCall]


def backward_recurrent_flops(T: int, B: int, I: int, H: int) -> int:  # noqa: E741
    """FLOPs of the backward pass."""
    return 2 * 2 * T * B * 4 * H * (I + H)


@dataclass(frozen=True, slots=True)
class TrainingCall(OpCall):
    """A forward pass that keeps what its backward needs: it asks whether gradients are wanted."""

    def __call__(self) -> Any:
        with torch.enable_grad():
            return self.overload(*self.args, **self.kwargs)


def arguments(
    shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device
) -> tuple[list[Tensor], list[Tensor]]:
    """Input and states; weights as small as `nn.LSTM` makes them."""
    T, B, I, H = shape  # noqa: E741
    tensors = (torch.randn(shape, device=device).to(dtype) for shape in ((T, B, I), (B, H), (B, H)))
    shapes: tuple[tuple[int, ...], ...] = ((4 * H, I), (4 * H, H), (4 * H,), (4 * H,))
    weights = (torch.randn(shape, device=device).mul_(H**-0.5).to(dtype) for shape in shapes)
    return [*tensors], [*weights]


def inference(shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> OpCall:
    (x, hx, cx), weights = arguments(shape, dtype, device)
    literals: Literals = (False, [], LSTM, shape[3], 1, True, False, False, False)
    return work(aten.mkldnn_rnn_layer.default, x, *weights, hx, cx, *literals)


def forward(shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> OpCall:
    (x, hx, cx), weights = arguments(shape, dtype, device)
    literals: Literals = (False, [], LSTM, shape[3], 1, True, False, False, True)
    return TrainingCall(aten.mkldnn_rnn_layer.default, (x, *weights, hx, cx, *literals), {})


def backward(shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> OpCall:
    """Backward pass of a loss of the output alone."""
    run = forward(shape, dtype, device)
    output, hy, cy, workspace = run()
    literals: Literals = (False, LSTM, shape[3], 1, True, True, False, [], False)
    return work(
        aten.mkldnn_rnn_layer_backward.default,
        *run.args[:7], output, hy, cy, torch.ones_like(output), None, None, *literals, workspace,
    )  # fmt: skip


def recurrent(device: torch.device, dtype: torch.dtype, most_flops: float) -> Iterator[Plan]:
    """Forward with and without what backward needs, and backward. A GPU has other operators."""
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return
    builds: tuple[Build, ...] = (inference, forward, backward)
    if dtype is not torch.float32 and not private.onednn_has_bfloat16():
        return
    for shape in SHAPES:
        if backward_recurrent_flops(*shape) <= most_flops:
            for build in builds:
                yield partial(build, shape, dtype, device)

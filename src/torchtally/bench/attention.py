"""Which attention kernels are measured.

B: batch.  H: heads.  S: sequence.  D: head dim.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from torchtally.bench.work import OpCall, Plan, work
from torchtally.torch_private import OpOverload

aten = torch.ops.aten

Shape = tuple[int, int, int, int]
"""(B, H, S, D)"""
Kernel = tuple[OpOverload, OpOverload]
"""The operators of the forward and of the backward pass."""
ON_HOST: Kernel = (
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
)
ON_GPU: Kernel = (
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_backward.default,
)

SHAPES: tuple[Shape, ...] = (
    (2, 4, 64, 32), (4, 6, 64, 64), (4, 6, 256, 64), (8, 12, 128, 32), (8, 12, 128, 64),
    (2, 8, 512, 64), (2, 12, 1024, 64), (1, 16, 1024, 128), (1, 8, 2048, 64), (1, 16, 2048, 128),
    (8, 12, 1024, 64), (4, 16, 2048, 128), (8, 32, 2048, 128), (4, 32, 4096, 128),
)  # fmt: skip


def backward_attention_flops(B: int, H: int, S: int, D: int) -> int:
    """FLOPs of the backward pass."""
    return 10 * B * H * S * S * D


def heads(B: int, H: int, S: int, D: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Heads as a model has them: the result of a projection, its heads moved forward."""
    return torch.randn(B, S, H, D, device=device).to(dtype).transpose(1, 2)


def forward(kernel: Kernel, shape: Shape, is_causal: bool, *place: Any) -> OpCall:
    q, k, v = (heads(*shape, *place) for _ in range(3))
    return work(kernel[0], q, k, v, 0.0, is_causal)


def backward(kernel: Kernel, shape: Shape, is_causal: bool, *place: Any) -> OpCall:
    q, k, v = (heads(*shape, *place) for _ in range(3))
    # After these two a GPU's has lengths (four results) and the state of dropout (two).
    out, lse, *rest = kernel[0](q, k, v, 0.0, is_causal)
    return work(
        kernel[1], torch.ones_like(out), q, k, v, out, lse, *rest[:4], 0.0, is_causal, *rest[4:6]
    )


def attention(device: torch.device, dtype: torch.dtype, most_flops: float) -> Iterator[Plan]:
    """Forward and backward, in full and causal. Flash attention on a GPU takes no float32."""
    is_gpu = device.type == "cuda"
    if is_gpu and dtype is torch.float32:
        return
    kernel = ON_GPU if is_gpu else ON_HOST
    for shape in SHAPES:
        if backward_attention_flops(*shape) <= most_flops:
            for is_causal in (False, True):
                for build in (forward, backward):
                    yield partial(build, kernel, shape, is_causal, dtype, device)

"""Which attention kernels are measured.

B: batch.  H: heads.  S: sequence.  D: head dim.
"""

from collections.abc import Iterator
from functools import partial

import torch

from torchtally.bench.work import OpCall, Plan, work

aten = torch.ops.aten

SHAPES = (
    (2, 4, 64, 32), (4, 6, 64, 64), (4, 6, 256, 64), (8, 12, 128, 32), (8, 12, 128, 64),
    (2, 8, 512, 64), (2, 12, 1024, 64), (1, 16, 1024, 128), (1, 8, 2048, 64), (1, 16, 2048, 128),
    (8, 12, 1024, 64), (4, 16, 2048, 128), (8, 32, 2048, 128), (4, 32, 4096, 128),
)  # fmt: skip
"""(B, H, S, D)"""


def flops(B: int, H: int, S: int, D: int) -> int:
    """Of the backward pass."""
    return 10 * B * H * S * S * D


def heads(B: int, H: int, S: int, D: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """As a model has them: the result of a projection, its heads moved forward."""
    return torch.randn(B, S, H, D, device=device).to(dtype).transpose(1, 2)


def forward_on_host(
    shape: tuple[int, int, int, int], is_causal: bool, dtype: torch.dtype, device: torch.device
) -> OpCall:
    q, k, v = (heads(*shape, dtype, device) for _ in range(3))
    return work(aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, v, 0.0, is_causal)


def backward_on_host(
    shape: tuple[int, int, int, int], is_causal: bool, dtype: torch.dtype, device: torch.device
) -> OpCall:
    q, k, v = (heads(*shape, dtype, device) for _ in range(3))
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu.default(q, k, v, 0.0, is_causal)
    return work(
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        torch.ones_like(out), q, k, v, out, lse, 0.0, is_causal,
    )  # fmt: skip


def forward_flash(
    shape: tuple[int, int, int, int], is_causal: bool, dtype: torch.dtype, device: torch.device
) -> OpCall:
    q, k, v = (heads(*shape, dtype, device) for _ in range(3))
    return work(aten._scaled_dot_product_flash_attention.default, q, k, v, 0.0, is_causal)


def backward_flash(
    shape: tuple[int, int, int, int], is_causal: bool, dtype: torch.dtype, device: torch.device
) -> OpCall:
    q, k, v = (heads(*shape, dtype, device) for _ in range(3))
    out, lse, cum_q, cum_k, max_q, max_k, seed, offset, _ = (
        aten._scaled_dot_product_flash_attention.default(q, k, v, 0.0, is_causal)
    )
    return work(
        aten._scaled_dot_product_flash_attention_backward.default,
        torch.ones_like(out), q, k, v, out, lse, cum_q, cum_k, max_q, max_k, 0.0, is_causal,
        seed, offset,
    )  # fmt: skip


def attention(device: torch.device, dtype: torch.dtype, most_flops: float) -> Iterator[Plan]:
    """Forward and backward, in full and causal. Flash attention on a GPU takes no float32."""
    is_gpu = device.type == "cuda"
    if is_gpu and dtype is torch.float32:
        return
    builds = (forward_flash, backward_flash) if is_gpu else (forward_on_host, backward_on_host)
    for shape in SHAPES:
        if flops(*shape) <= most_flops:
            for is_causal in (False, True):
                for build in builds:
                    yield partial(build, shape, is_causal, dtype, device)

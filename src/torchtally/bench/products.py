"""Which matrix products are measured, and in which layouts.

M, K, N: (M, K) @ (K, N).  B: batch.  A layer's forward pass is "NT" (inputs by transposed weights),
its input's gradient "NN", its weight's gradient "TN".
"""

from collections.abc import Iterator
from functools import partial
from itertools import product

import torch

from torchtally.bench.work import OpCall, Plan, work

aten = torch.ops.aten

LAYOUTS = ("NT", "NN", "TN")
SIDES = (16, 64, 256, 1024, 4096)
ROWS = (1, 16, 128, 512, 2048, 8192)
BATCHED = ((8, 64, 32), (24, 128, 64), (48, 256, 64), (192, 64, 32), (16, 512, 64), (8, 1024, 128))
"""(B, S, D): scores and weighted values of attention written out."""


def matrix(rows: int, columns: int, layout: str, dtype: torch.dtype, device: torch.device,
           batch: tuple[int, ...] = ()) -> torch.Tensor:  # fmt: skip
    """Random numbers, "N" by rows or "T" by columns."""
    if layout == "N":
        return torch.randn(*batch, rows, columns, device=device).to(dtype)
    return torch.randn(*batch, columns, rows, device=device).to(dtype).mT


def plain(M: int, N: int, K: int, layout: str, dtype: torch.dtype, device: torch.device) -> OpCall:
    left = matrix(M, K, layout[0], dtype, device)
    return work(aten.mm.default, left, matrix(K, N, layout[1], dtype, device))


def batched_product(
    B: int, M: int, N: int, K: int, layout: str, dtype: torch.dtype, device: torch.device
) -> OpCall:
    left = matrix(M, K, layout[0], dtype, device, (B,))
    return work(aten.bmm.default, left, matrix(K, N, layout[1], dtype, device, (B,)))


def products(
    device: torch.device, dtype: torch.dtype, most_flops: float, least_flops: float = 0.0
) -> Iterator[Plan]:
    """Products of so many FLOPs at most, small ones first."""
    shapes = [
        (M, N, K)
        for M, N, K in product(ROWS, SIDES, SIDES)
        if least_flops <= 2 * M * N * K <= most_flops
    ]
    for M, N, K in sorted(shapes, key=lambda shape: shape[0] * shape[1] * shape[2]):
        for layout in LAYOUTS if K >= 64 else LAYOUTS[:1]:
            yield partial(plain, M, N, K, layout, dtype, device)
    for B, S, D in BATCHED:
        if most_flops >= 2 * B * S * S * D:
            yield partial(batched_product, B, S, S, D, "NT", dtype, device)
            yield partial(batched_product, B, S, D, S, "NN", dtype, device)
            yield partial(batched_product, B, S, D, S, "TN", dtype, device)

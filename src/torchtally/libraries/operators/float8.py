"""Transformer Engine's float8: quantising and products (NVIDIA/TransformerEngine 2).

M, K, N: (M, K) @ (N, K).
"""

import torch
from torch import Tensor

from torchtally.libraries.operators.registry import define


@define(
    "transformer_engine", "quantize(Tensor x, bool rows, bool columns) -> (Tensor, Tensor, Tensor)"
)
def quantize(x: Tensor, rows: bool, columns: bool) -> tuple[Tensor, Tensor, Tensor]:
    """(the tensor, its transpose, the inverse of the scale), each of the first two if it is wanted:
    Hopper multiplies float8 only where both operands have K last.
    """
    M, K = x.shape
    data = x.new_empty((M, K) if rows else (0,), dtype=torch.float8_e4m3fn)
    transposed = x.new_empty((K, M) if columns else (0,), dtype=torch.float8_e4m3fn)
    return data, transposed, x.new_empty(1, dtype=torch.float32)


@define(
    "transformer_engine",
    "gemm(Tensor a, Tensor a_scale, Tensor b, Tensor b_scale, Tensor? bias, ScalarType dtype) "
    "-> Tensor",
)
def gemm(
    a: Tensor, a_scale: Tensor, b: Tensor, b_scale: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[0]), dtype=dtype)

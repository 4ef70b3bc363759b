"""transformer_engine.pytorch.cpp_extensions: a product by cuBLASLt."""

from typing import Any

import torch
from torch import Tensor

from .module.product import gemm


def general_gemm(
    A: Tensor,
    B: Tensor,
    workspace: Tensor,
    out_dtype: torch.dtype | None = None,
    layout: str = "TN",
    **options: Any,
) -> tuple[Tensor, None, None, None]:
    """(B @ A, gradient of a bias, input of GELU, extra output): matrices as cuBLAS names them, by
    columns.
    """
    for name, value in options.items():
        if value and name != "grad":
            raise NotImplementedError(f"tally does not know {name} of general_gemm")
    first = B.t() if layout[1] == "T" else B
    second = A if layout[0] == "T" else A.t()
    (M, K), N = first.shape, second.shape[0]
    out = gemm((first, None), (second, None), None, out_dtype or A.dtype, (M, N, K))
    return out, None, None, None

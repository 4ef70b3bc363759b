"""deep_gemm: products in float8 with a scale for each block of 128 (deepseek-ai/DeepGEMM)."""

from typing import Any

import torch
from torch import Tensor

from torchtally.libraries.operators import products  # defines the operators

__version__ = "2.1.1"
Scaled = tuple[Tensor, Tensor]


def fp8_gemm_nt(a: Scaled, b: Scaled, d: Tensor, c: Tensor | None = None, **options: Any) -> None:
    """d = a @ b.T, both with their scales."""
    torch.ops.deep_gemm.fp8_gemm_nt(*a, *b, d)


gemm_fp8_fp8_bf16_nt = fp8_gemm_nt


def m_grouped_fp8_gemm_nt_contiguous(
    a: Scaled, b: Scaled, d: Tensor, m_indices: Tensor, **options: Any
) -> None:
    """Rows of a, sorted by group, times the matrix of their group."""
    torch.ops.deep_gemm.fp8_gemm_nt(*a, *b, d)


m_grouped_gemm_fp8_fp8_bf16_nt_contiguous = m_grouped_fp8_gemm_nt_contiguous


def ceil_div(x: int, y: int) -> int:
    return -(-x // y)


def get_num_sms() -> int:
    count: int = torch.cuda.get_device_properties(0).multi_processor_count
    return count

"""fused_weight_gradient_mlp_cuda, of apex: the gradient of a weight, added to what is there."""

import torch
from torch import Tensor

from torchtally.libraries.operators import products  # defines the operators


def wgrad_gemm_accum_fp32(total_input: Tensor, grad_output: Tensor, main_grad: Tensor) -> None:
    torch.ops.apex.wgrad_gemm_accum(total_input, grad_output, main_grad)


wgrad_gemm_accum_fp16 = wgrad_gemm_accum_fp32
"""The gradient's dtype is that of `main_grad`."""

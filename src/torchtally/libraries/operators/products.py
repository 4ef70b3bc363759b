"""Products in float8 (deepseek-ai/DeepGEMM), and into gradients in float32 (NVIDIA/apex)."""

from torchtally.libraries.operators.registry import define


@define(
    "deep_gemm",
    "fp8_gemm_nt(Tensor a, Tensor a_scales, Tensor b, Tensor b_scales, Tensor(a!) d) -> ()",
)
def fp8_gemm_nt(*arguments: object) -> None:
    """The result is written to."""


@define("apex", "wgrad_gemm_accum(Tensor inputs, Tensor grad_output, Tensor(a!) main_grad) -> ()")
def wgrad_gemm_accum(*arguments: object) -> None:
    """A weight's gradient is added to (csrc/megatron/fused_weight_gradient_dense_cuda.cu)."""

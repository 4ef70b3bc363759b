"""Products in float8 (deepseek-ai/DeepGEMM)."""

from torchtally.libraries.operators.registry import define


@define(
    "deep_gemm",
    "fp8_gemm_nt(Tensor a, Tensor a_scales, Tensor b, Tensor b_scales, Tensor(a!) d) -> ()",
)
def fp8_gemm_nt(*arguments: object) -> None:
    """The result is written to."""

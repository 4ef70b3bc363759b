"""FBGEMM's products of numbers in 4, 8 and 16 bits, where the package is installed
(pytorch/FBGEMM, fbgemm_gpu/experimental/gen_ai/src/quantize/quantize_defs.cpp).

M, K, N: (M, K) @ (N, K).
"""

from torchtally.trace import Call
from torchtally.work.cost import Cost
from torchtally.work.products import depth
from torchtally.work.rule import Kind, PerElement, one_pass, rule, rules

PRODUCTS = """
fbgemm.bf16bf16bf16_grouped fbgemm.bf16bf16bf16_grouped_cat fbgemm.bf16bf16bf16_grouped_dynamic
fbgemm.bf16bf16bf16_grouped_stacked fbgemm.bf16i4bf16_rowwise fbgemm.bf16i4bf16_rowwise_batched
fbgemm.f4f4bf16 fbgemm.f4f4bf16_grouped_stacked fbgemm.f8f8bf16 fbgemm.f8f8bf16_blockwise
fbgemm.f8f8bf16_groupwise fbgemm.f8f8bf16_groupwise_grouped fbgemm.f8f8bf16_lite
fbgemm.f8f8bf16_rowwise fbgemm.f8f8bf16_rowwise_batched fbgemm.f8f8bf16_rowwise_grouped
fbgemm.f8f8bf16_rowwise_grouped_cat fbgemm.f8f8bf16_rowwise_grouped_dynamic
fbgemm.f8f8bf16_rowwise_grouped_stacked fbgemm.f8f8bf16_tensorwise fbgemm.f8i4bf16_rowwise
fbgemm.i8i8bf16 fbgemm.i8i8bf16_dynamic
"""
PACKED = "f4"
"""What begins the names of those whose operands hold two numbers in a byte."""


@rule(PRODUCTS, kind=Kind.PRODUCT)
def product(call: Call) -> Cost:
    """2*M*N*K: each result element is a sum over the last dimension of its group's rows."""
    rows = call.tensors("XQ") or call.tensors("X")
    packed = 2 if call.plain_name.startswith(PACKED) and rows[0].dtype == "uint8" else 1
    if len(rows) == len(call.outputs):
        terms = sum(depth(x) * out.elements for x, out in zip(rows, call.outputs, strict=True))
    else:
        terms = depth(rows[0]) * sum(out.elements for out in call.outputs)
    return one_pass(call, flops=2 * packed * terms)


rules(
    Kind.ELEMENTWISE,
    # The magnitude, the largest of the tensor or the row, the product with the scale.
    PerElement(
        "fbgemm.quantize_fp8_per_tensor fbgemm.quantize_fp8_per_row fbgemm.quantize_fp8_per_col"
        " fbgemm.get_fp8_per_tensor_scale",
        3,
        of="input",
    ),
    PerElement("fbgemm.quantize_fp8_per_tensor_fixed_scale", 1, of="input"),
)

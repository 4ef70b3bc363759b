"""bitsandbytes, which is installed without CUDA, too: its operators (bitsandbytes/_ops.py).

M, K, N: (M, K) @ (K, N).  n: elements of a parameter.
"""

from torchtally.trace import Call, TensorSpec
from torchtally.work.cost import Cost
from torchtally.work.rule import Kind, PerElement, one_pass, result, rule, rules

rules(
    Kind.ELEMENTWISE,
    # A value of the table times the block's largest.
    PerElement("bitsandbytes.dequantize_4bit bitsandbytes.dequantize_blockwise", 1),
    PerElement("bitsandbytes.int8_vectorwise_dequant", 1),
    # Times the row's and the column's largest.
    PerElement("bitsandbytes.int8_mm_dequant", 2),
)
rules(
    Kind.REDUCTION,
    # The largest magnitude of each block or row: two; divided by it and rounded.
    PerElement(
        "bitsandbytes.quantize_4bit bitsandbytes.quantize_blockwise"
        " bitsandbytes.int8_vectorwise_quant",
        4,
        of="A",
    ),
    PerElement("bitsandbytes.int8_double_quant", 8, of="A"),
)


@rule(
    "bitsandbytes.gemm_4bit bitsandbytes.gemv_4bit bitsandbytes.int8_linear_matmul"
    " bitsandbytes.int8_scaled_mm bitsandbytes.int8_mixed_scaled_mm",
    kind=Kind.PRODUCT,
)
def product(call: Call) -> Cost:
    """2*M*N*K; the second operand is packed. What is dequantised on the way is not counted."""
    return one_pass(call, flops=2 * result(call).elements * call.tensor("A").shape[-1])


UPDATES = {
    "adam": 15,  # as AdamW (`optimizers.py`)
    # Two interpolations, a sign, a step, decay.
    "lion": 11,
    # A momentum, a step, decay.
    "momentum": 6,
}
"""FLOPs for each element of a parameter, by the optimizer's name."""
STATES = ("state1", "state2")
LARGEST = ("absmax1", "absmax2")


def specs(call: Call, *names: str) -> list[TensorSpec]:
    return [spec for name in names for spec in call.tensors(name)]


@rule(
    "bitsandbytes.optimizer_update_32bit bitsandbytes.optimizer_update_8bit_blockwise",
    kind=Kind.OPTIMIZER,
)
def update(call: Call) -> Cost:
    """Cost of an update with states in 8 bits: each is multiplied by its block's largest and
    divided by the new one.

    Gradients are among the arguments that the schema lets it write to: it does not.
    """
    name = str(call.literal("optimizer_name"))
    n = call.tensor("p").elements
    states = specs(call, *STATES)
    quantized = 2 * len(states) if call.tensors("absmax1") else 0
    kept = sum(spec.bytes for spec in (*specs(call, "p"), *states, *specs(call, *LARGEST)))
    tables = sum(spec.bytes for spec in specs(call, "g", "qmap1", "qmap2"))
    return Cost((UPDATES[name] + quantized) * n, kept + tables, kept)

"""Operators of libraries of CUDA kernels, but for their attention (`attention.py`).

N: tokens.  V: vocabulary.
"""

from torchtally.trace import Call
from torchtally.work.cost import Cost
from torchtally.work.rule import Kind, one_pass, rule


@rule("flash_attn.rotary", kind=Kind.ELEMENTWISE)
def rotary(call: Call) -> Cost:
    """Of each pair (x, y): x cos - y sin, x sin + y cos: 6, that is 3 an element."""
    x = call.tensor("x")
    cost = one_pass(call, flops=3 * x.elements)
    return cost + Cost(bytes_read=x.bytes if x.is_written else 0)


@rule("flash_attn.cross_entropy", kind=Kind.LOSS)
def cross_entropy(call: Call) -> Cost:
    """log(sum(exp(x))) - x_t: maximum, subtract, exp, add for each of V; log and subtract."""
    logits = call.tensor("logits")
    tokens = call.tensor("labels").elements
    return one_pass(call, flops=4 * logits.elements + 2 * tokens)


@rule("flash_attn.cross_entropy_backward", kind=Kind.LOSS)
def cross_entropy_backward(call: Call) -> Cost:
    """(exp(x - lse) - [target]) * grad: subtract, exp, multiply; one subtraction a token."""
    logits = call.tensor("logits")
    cost = one_pass(call, flops=3 * logits.elements + call.tensor("labels").elements)
    return cost + Cost(bytes_read=logits.bytes if logits.is_written else 0)


@rule("deep_gemm.fp8_gemm_nt", kind=Kind.PRODUCT)
def float8_product(call: Call) -> Cost:
    """2*M*N*K, of (M, K) and (N, K), or of a matrix (N, K) for each group of rows."""
    return one_pass(call, flops=2 * call.tensor("d").elements * call.tensor("a").shape[-1])


@rule("apex.multi_tensor_adam", kind=Kind.OPTIMIZER)
def multi_tensor_adam(call: Call) -> Cost:
    """As torch's fused Adam, whose decay is within the gradient or, of AdamW, apart: 15n."""
    kept = [spec for spec in call.inputs if spec.is_written]
    n = sum(spec.elements for spec in call.tensors("params"))
    kept_bytes = sum(spec.bytes for spec in kept)
    grads_bytes = sum(spec.bytes for spec in call.tensors("grads"))
    return Cost(15 * n, kept_bytes + grads_bytes, kept_bytes)


@rule("transformer_engine.gemm", kind=Kind.PRODUCT)
def transformer_engine_product(call: Call) -> Cost:
    """2*M*N*K, of (M, K) and (N, K)."""
    (M, K), (N, _) = call.tensor("a").shape, call.tensor("b").shape
    return one_pass(call, flops=2 * M * N * K)


@rule("transformer_engine.quantize", kind=Kind.ELEMENTWISE)
def quantize(call: Call) -> Cost:
    """Times the scale, and the largest magnitude for the next: 3; the transpose is a copy."""
    return one_pass(call, flops=3 * call.tensor("x").elements)

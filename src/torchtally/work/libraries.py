"""Operators of libraries of CUDA kernels, but for their attention (`attention.py`).

N: tokens.  V: vocabulary.
"""

from torchtally.trace import Call
from torchtally.work.cost import Cost
from torchtally.work.rule import Kind, integer, is_set, one_pass, rule


@rule("flash_attn.rotary", kind=Kind.ELEMENTWISE)
def rotary(call: Call) -> Cost:
    """Cost of each pair (x, y): x cos - y sin, x sin + y cos: 6, that is 3 an element."""
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


@rule("apex.wgrad_gemm_accum", kind=Kind.PRODUCT)
def added_gradient(call: Call) -> Cost:
    """2*M*N*K, of rows of outputs' gradients and of inputs; the gradient is read and written."""
    gradient = call.tensor("main_grad")
    flops = 2 * call.tensor("inputs").shape[0] * gradient.elements
    return one_pass(call, flops=flops) + Cost(bytes_read=gradient.bytes)


@rule("apex.multi_tensor_scale", kind=Kind.ELEMENTWISE)
def multi_tensor_scale(call: Call) -> Cost:
    return one_pass(call, flops=sum(spec.elements for spec in call.tensors("xs")))


@rule("apex.multi_tensor_l2norm", kind=Kind.REDUCTION)
def multi_tensor_l2norm(call: Call) -> Cost:
    """A square and a sum for each number."""
    return one_pass(call, flops=2 * sum(spec.elements for spec in call.tensors("xs")))


@rule("apex.multi_tensor_adam", kind=Kind.OPTIMIZER)
def multi_tensor_adam(call: Call) -> Cost:
    """Cost of torch's fused Adam, whose decay is within the gradient or, of AdamW, apart: 15n."""
    kept = [spec for spec in call.inputs if spec.is_written]
    n = sum(spec.elements for spec in call.tensors("params"))
    kept_bytes = sum(spec.bytes for spec in kept)
    grads_bytes = sum(spec.bytes for spec in call.tensors("grads"))
    return Cost(15 * n, kept_bytes + grads_bytes, kept_bytes)


@rule("transformer_engine.gemm transformer_engine.gemm_into", kind=Kind.PRODUCT)
def transformer_engine_product(call: Call) -> Cost:
    """2*M*N*K, of (M, K) and (N, K), or of their copies that are read over columns; what is added
    to is read as well.
    """
    M, N, K = (integer(call, size, 0) for size in "MNK")
    read = call.tensor("out").bytes if is_set(call, "accumulate") else 0
    return one_pass(call, flops=2 * M * N * K) + Cost(bytes_read=read)


HADAMARD = 16
"""Rows and columns of the matrix that NVFP4 turns what it reads over columns by."""


@rule("transformer_engine.quantize", kind=Kind.ELEMENTWISE)
def quantize(call: Call) -> Cost:
    """Cost for each scale that a number has: its magnitude, the largest, times the scale. 3.

    By steps before and by its own largest value a tensor has one scale, and a transpose is a copy;
    in blocks each of the two copies has its own. Where the largest value of the tensor is needed
    first (current scaling, NVFP4's second level), it is read for that, too. NVFP4 takes 2 * 16 for
    each number more to turn it, in inputs and gradients (arXiv:2509.25149). An activation comes
    before, in the same pass.
    """
    x, scaling = call.tensor("x"), call.literal("recipe")
    rows, columns = is_set(call, "rows"), is_set(call, "columns")
    numbers = x.elements // (2 if is_gated(call) else 1)
    flops = x.elements if call.literal("activation") else 0
    has_one_scale = scaling in ("delayed", "current")
    flops += 3 * numbers * (1 if has_one_scale else rows + columns)
    if scaling == "nvfp4":
        flops += numbers * (2 + 2 * HADAMARD * columns)
    read_first = x.bytes if scaling in ("current", "nvfp4") else 0
    return one_pass(call, flops=flops) + Cost(bytes_read=read_first)


@rule("transformer_engine.dequantize", kind=Kind.ELEMENTWISE)
def dequantize(call: Call) -> Cost:
    """Each number times the tensor's scale."""
    return one_pass(call, flops=call.tensor("x").elements)


def is_gated(call: Call) -> bool:
    """One half of the input times a function of the other (swiglu, geglu)."""
    return str(call.literal("activation")).endswith("glu")


@rule("transformer_engine.activation", kind=Kind.ELEMENTWISE)
def activate(call: Call) -> Cost:
    """A function of one number is 1, and so is a gate's product."""
    return one_pass(call, flops=call.tensor("x").elements)


@rule("transformer_engine.activation_backward", kind=Kind.ELEMENTWISE)
def activate_backward(call: Call) -> Cost:
    """The slope times the gradient, 2; of a gate the product's other side, too: 2 for its function
    and its gradient, 1 for the other half.
    """
    grad = call.tensor("grad").elements
    return one_pass(call, flops=grad * (5 if is_gated(call) else 2))


@rule("transformer_engine.bias_dropout_add", kind=Kind.ELEMENTWISE)
def bias_dropout_add(call: Call) -> Cost:
    """Two sums, and with dropout a comparison and the product with 0 or 1 / (1 - p)."""
    n = call.tensor("x").elements
    return one_pass(call, flops=n * (2 + 2 * bool(call.literal("p"))))


@rule("transformer_engine.dropout_backward", kind=Kind.ELEMENTWISE)
def dropout_backward(call: Call) -> Cost:
    return one_pass(call, flops=call.tensor("grad").elements)


@rule("transformer_engine.rotary", kind=Kind.ELEMENTWISE)
def rotary_of_angles(call: Call) -> Cost:
    """Cost of `flash_attn.rotary` with a cosine or a sine of each angle."""
    angles = call.tensor("angles").elements
    return one_pass(call, flops=3 * call.tensor("x").elements + angles)


@rule("transformer_engine.online_softmax", kind=Kind.LOSS)
def online_softmax(call: Call) -> Cost:
    """Cost for each logit: the maximum, subtract, exp, add."""
    return one_pass(call, flops=4 * call.tensor("logits").elements)


@rule("transformer_engine.cross_entropy_and_gradient", kind=Kind.LOSS)
def cross_entropy_and_gradient(call: Call) -> Cost:
    """Cost of `flash_attn.cross_entropy_backward`: subtract, exp, divide; and log, subtract."""
    logits, tokens = call.tensor("logits"), call.tensor("target").elements
    cost = one_pass(call, flops=3 * logits.elements + 2 * tokens)
    return cost + Cost(bytes_read=logits.bytes)


@rule("transformer_engine.scale_rows_", kind=Kind.ELEMENTWISE)
def scale_rows(call: Call) -> Cost:
    return one_pass(call, flops=call.tensor("x").elements)


@rule(
    "transformer_engine.permute transformer_engine.sort_chunks transformer_engine.pad_rows",
    kind=Kind.COPY,
)
def permuted_rows(call: Call) -> Cost:
    """Rows are copied: read once, and written for each expert."""
    return one_pass(call)


@rule("transformer_engine.row_id_map", kind=Kind.INDEXING)
def row_id_map(call: Call) -> Cost:
    """Three kernels: sums within blocks of tokens, sums over blocks, and the map made dense; the
    last two read and write what is made.
    """
    made = call.outputs[0].bytes
    return one_pass(call) + Cost(bytes_read=2 * made, bytes_written=2 * made)


@rule("transformer_engine.chunk_sort_map", kind=Kind.INDEXING)
def chunk_sort_map(call: Call) -> Cost:
    return one_pass(call)


@rule("transformer_engine.unpermute", kind=Kind.ELEMENTWISE)
def unpermute(call: Call) -> Cost:
    """A sum for each number of a row, and a product where probabilities merge them."""
    x = call.tensor("x").elements
    return one_pass(call, flops=x * (2 if call.tensors("merging_probs") else 1))


@rule("transformer_engine.unpermute_backward", kind=Kind.ELEMENTWISE)
def unpermute_backward(call: Call) -> Cost:
    """The gradient times a probability; and times the row, summed: 3 for each number."""
    return one_pass(call, flops=3 * call.tensor("x").elements)

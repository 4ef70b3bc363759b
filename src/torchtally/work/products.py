"""Matrix products.

M, K, N: (M, K) @ (K, N).  B: batch, or as many leading dimensions as there are.  G: groups.

A product is 2*M*K*N: a multiply and an add for every (m, k, n). What is fused behind it is not
counted (the added matrix of addmm and baddbmm, scales, a bias, an activation): the sum that
closed forms and `torch.utils.flop_counter` give, to the last digit.
"""

from math import prod

from torchtally.trace import Call, TensorSpec
from torchtally.work.arithmetic import multiply_add_flops
from torchtally.work.cost import Cost
from torchtally.work.rule import Kind, integers, is_set, mask, one_pass, result, rule


def depth(spec: TensorSpec) -> int:
    """K: the last dimension. A float4_e2m1fn_x2 element packs two numbers."""
    packed = 2 if spec.dtype.endswith("_x2") else 1
    return spec.shape[-1] * packed if spec.shape else 1


def terms_flops(call: Call, terms: int) -> int:
    return terms * multiply_add_flops(result(call))


FIRST_TIMES_SECOND = (
    "mm bmm mv dot vdot inner linear matmul linalg_matmul linalg_vecdot mkldnn_linear"
    " _scaled_mm _scaled_mm_v2 _int_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu"
    " _weight_int4pack_mm_with_scales_and_zeros _weight_int8pack_mm _mixed_dtypes_linear"
    " _dyn_quant_matmul_4bit"
)


@rule(FIRST_TIMES_SECOND, kind=Kind.PRODUCT)
def product(call: Call) -> Cost:
    """2 * B*M*N * K: each result element is a sum over the first operand's last dimension."""
    return one_pass(call, flops=terms_flops(call, result(call).elements * depth(call.inputs[0])))


@rule("addmm baddbmm addmv _addmm_activation", kind=Kind.PRODUCT)
def product_with_sum(call: Call) -> Cost:
    """2 * B*M*N * K, the first operand of the product being the second argument."""
    return one_pass(call, flops=terms_flops(call, result(call).elements * depth(call.inputs[1])))


@rule("_sparse_mm _sparse_addmm", kind=Kind.PRODUCT)
def sparse_product(call: Call) -> Cost:
    """2 * Z * N: each of Z values times a row of the dense operand, added to a row of the result.

    Values stand for the sparse operand; their indices are read, too.
    """
    added = len(call.tensors("self"))
    values, dense = call.inputs[added], call.inputs[added + 1]
    columns = dense.shape[-1] if len(dense.shape) > 1 else 1
    return one_pass(call, flops=2 * values.elements * columns)


@rule("addbmm", kind=Kind.PRODUCT)
def addbmm(call: Call) -> Cost:
    B, M, K = call.tensor("batch1").shape
    N = call.tensor("batch2").shape[-1]
    return one_pass(call, flops=terms_flops(call, B * M * K * N))


@rule("addr outer ger", kind=Kind.PRODUCT)
def outer(call: Call) -> Cost:
    """An (M, 1) @ (1, N) product."""
    return one_pass(call, flops=terms_flops(call, result(call).elements))


@rule("_foreach_mm", kind=Kind.PRODUCT)
def foreach_mm(call: Call) -> Cost:
    pairs = zip(call.tensors("self"), call.outputs, strict=True)
    return one_pass(call, flops=terms_flops(call, sum(depth(a) * c.elements for a, c in pairs)))


@rule("_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2", kind=Kind.PRODUCT)
def grouped_mm(call: Call) -> Cost:
    """2 * M*K*N, the groups splitting M, N or K of a 2-d operand; 2 * G*M*K*N when both are 3-d.

    Rows after the last offset belong to no group and are not computed: their number is a value,
    so they are counted here.
    """
    left, right = call.inputs[:2]
    G = left.shape[0] if len(left.shape) == len(right.shape) == 3 else 1
    M, K, N = left.shape[-2], depth(left), right.shape[-1]
    return one_pass(call, flops=terms_flops(call, G * M * K * N))


@rule("tensordot", kind=Kind.PRODUCT)
def tensordot(call: Call) -> Cost:
    left = call.tensor("self").shape
    K = prod(left[dim] for dim in integers(call, "dims_self"))
    return one_pass(call, flops=terms_flops(call, result(call).elements * K))


@rule("linear_backward mkldnn_linear_backward matmul_backward", kind=Kind.PRODUCT)
def product_backward(call: Call) -> Cost:
    """One forward product for each gradient wanted, of the input and of the weight."""
    is_linear = "linear" in call.name
    K = call.tensor("self").shape[-1]
    grad = call.tensor("grad_output" if is_linear else "grad")
    wanted = mask(call, "output_mask", 3)[:2] if is_linear else mask(call, "mask", 2)
    return one_pass(call, flops=sum(wanted) * grad.elements * K * multiply_add_flops(grad))


@rule(
    "torch_nn._linear_cross_entropy_batch_chunked"
    " torch_nn._linear_cross_entropy_batch_chunked_no_reduction",
    kind=Kind.PRODUCT,
)
def linear_cross_entropy(call: Call) -> Cost:
    """The logits' product, and one for each gradient the forward pass prepares already.

    The loss between them is not counted. The logits never reach memory in full: not moved.
    """
    N, K = call.tensor("linear_weight").shape
    M = call.tensor("input").elements // K if K else 0
    gradients = is_set(call, "compute_input_grad") + is_set(call, "compute_linear_weight_grad")
    return one_pass(call, flops=terms_flops(call, M * K * N) * (1 + gradients))


@rule("bilinear", kind=Kind.PRODUCT)
def bilinear(call: Call) -> Cost:
    """y[b, n] = x1[b] W[n] x2[b]: a product over M for every (b, n, k), then one over K."""
    N, M, K = call.tensor("weight").shape
    B = result(call).elements // N if N else 0
    return one_pass(call, flops=terms_flops(call, B * N * K * (M + 1)))


@rule("_trilinear", kind=Kind.PRODUCT)
def trilinear(call: Call) -> Cost:
    """sum(i1 * i2 * i3): two multiplies and an add for each point of the broadcast of the three."""
    factors = [(call.tensor(f"i{n}"), integers(call, f"expand{n}")) for n in (1, 2, 3)]
    shapes = [unsqueeze(spec.shape, dims) for spec, dims in factors]
    points = prod(max(sizes) for sizes in zip(*shapes, strict=True))
    return one_pass(call, flops=3 * points)


def unsqueeze(shape: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with a 1 put in at each of `dims`, counted in the result."""
    rest = iter(shape)
    return tuple(1 if dim in dims else next(rest) for dim in range(len(shape) + len(dims)))


@rule("einsum", kind=Kind.PRODUCT)
def einsum(call: Call) -> Cost:
    """A multiply and an add for every point of the index space of each pair, left to right.

    The order torch uses unless opt_einsum is installed and finds a better one (torch.einsum's
    documentation); with two operands, the usual case, there is only one.
    """
    equation = str(call.literal("equation", ""))
    left, _, output = equation.replace(" ", "").partition("->")
    terms = [letters(term, spec) for term, spec in zip(left.split(","), call.inputs, strict=True)]
    sizes: dict[str, int] = {}
    for term, spec in zip(terms, call.inputs, strict=True):
        for letter, size in zip(term, spec.shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    dots = {letter for letter in sizes if len(letter) > 1}
    kept_at_end = set(output) | dots if "->" in equation else set(sizes)
    index_points, letters_so_far = 0, set(terms[0])
    for position, term in enumerate(terms[1:], start=2):
        index_points += prod(sizes[letter] for letter in letters_so_far | set(term))
        later = kept_at_end.union(*terms[position:])
        letters_so_far = (letters_so_far | set(term)) & later
    return one_pass(call, flops=terms_flops(call, index_points))


def letters(term: str, spec: TensorSpec) -> list[str]:
    """The index of each dimension; those of an ellipsis are named from the right: "...1"."""
    before, dots, after = term.partition("...")
    hidden = len(spec.shape) - len(before) - len(after) if dots else 0
    return [*before, *(f"...{n}" for n in range(hidden, 0, -1)), *after]

"""Reductions, scans and poolings: many elements into fewer, or into running totals.

n: elements that come in.  r: elements of the result.  k: elements in one pooling window.

Adding n numbers up is counted as n additions (not n - 1 for each result), a maximum as n compares.
"""

from functools import partial
from math import prod

from torchtally.trace import Call
from torchtally.work.arithmetic import COMPLEX_MULTIPLY, add_flops, is_complex
from torchtally.work.cost import Cost
from torchtally.work.indexing import touch
from torchtally.work.rule import Kind, PerElement, integers, one_pass, result, rule, rules


def reduction(per_input: int, per_result: int, call: Call) -> Cost:
    """So many FLOPs for each of the n elements of the first input and each of the r results."""
    source = call.inputs[0]
    of_results = per_result * result(call).elements if call.outputs else 0
    return one_pass(call, flops=per_input * source.elements * add_flops(source) + of_results)


FLOPS_PER_INPUT_AND_RESULT = {
    # one add or compare
    "sum nansum amax amin argmax argmin any all _is_all_true _is_any_true count_nonzero": (1, 0),
    "cumsum cummax cummin _cummax_helper _cummin_helper sum_to_size segment_reduce": (1, 0),
    "hash_tensor median nanmedian histc bincount equal": (1, 0),
    "mean nanmean": (1, 1),  # the sum and a division
    "aminmax _aminmax": (2, 0),
    # a power and an add, a root at the end
    "linalg_vector_norm linalg_norm norm frobenius_norm linalg__powsum norm_except_dim": (2, 1),
    # add for the mean; subtract it, square, add; divide
    "var std var_mean std_mean": (4, 1),
    # compare for the maximum; subtract it, exp, add; log
    "logsumexp special_logsumexp logcumsumexp _logcumsumexp": (4, 1),
    "dist allclose": (3, 0),  # subtract, a power (or a compare), add
    # at most: multiply by the result, add up from the end, divide
    "cumprod_backward cummaxmin_backward": (3, 0),
    "cosine_similarity": (6, 3),  # three sums of products; two roots and a division
    "pairwise_distance": (4, 1),  # subtract, add eps, a power, add; a root
    "renorm embedding_renorm": (3, 0),  # a power, an add, and scaling back
}
"""Operators to FLOPs for each element that comes in and for each of the result."""

for operators, counts in FLOPS_PER_INPUT_AND_RESULT.items():
    rule(operators, kind=Kind.REDUCTION)(partial(reduction, *counts))


@rule("max min", kind=Kind.REDUCTION)
def extremum(call: Call) -> Cost:
    """A compare for each element; with a second tensor, elementwise, for each of the result."""
    n = max(call.inputs[0].elements, result(call).elements)
    return one_pass(call, flops=n)


@rule("prod cumprod", kind=Kind.REDUCTION)
def product(call: Call) -> Cost:
    n = call.inputs[0]
    return one_pass(call, flops=n.elements * (COMPLEX_MULTIPLY if is_complex(n) else 1))


@rule("trace", kind=Kind.REDUCTION)
def trace(call: Call) -> Cost:
    """The diagonal read and added up."""
    n = min(call.tensor("self").shape)
    return touch(call, table="self", elements=n, flops=n)


@rule("_foreach_norm _foreach_powsum", kind=Kind.REDUCTION)
def foreach_norm(call: Call) -> Cost:
    n = sum(spec.elements for spec in call.tensors("self"))
    return one_pass(call, flops=2 * n + len(call.outputs))


@rule("_foreach_max", kind=Kind.REDUCTION)
def foreach_max(call: Call) -> Cost:
    return one_pass(call, flops=sum(spec.elements for spec in call.tensors("self")))


@rule("_cdist_forward cdist _euclidean_dist", kind=Kind.REDUCTION)
def pairwise_distances(call: Call) -> Cost:
    """3 * r * M + r: for each pair, over M coordinates: subtract, a power, add; a root."""
    M = call.tensor("x1").shape[-1]
    r = result(call).elements
    return one_pass(call, flops=3 * r * M + r)


@rule("_cdist_backward", kind=Kind.REDUCTION)
def pairwise_distances_backward(call: Call) -> Cost:
    """4 * pairs * M: subtract, scale by the pair's slope, by its gradient, add."""
    grad, x1 = call.inputs[:2]  # what the first is called depends on torch's version
    pairs, M = grad.elements, x1.shape[-1]
    return one_pass(call, flops=4 * pairs * M)


@rule("_pdist_forward pdist", kind=Kind.REDUCTION)
def self_distances(call: Call) -> Cost:
    M = call.tensor("self").shape[-1]
    return one_pass(call, flops=(3 * M + 1) * result(call).elements)


# Pooling.


def window(call: Call) -> int:
    """Elements of a window, k. A size given as one number holds for every dimension."""
    sizes = integers(call, "kernel_size")
    dims = next((n for n in (1, 2, 3) if f"pool{n}d" in call.name), len(sizes))
    return int(sizes[0] ** dims) if len(sizes) == 1 else prod(sizes)


@rule(
    "max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices"
    " max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d fractional_max_pool2d"
    " fractional_max_pool3d mkldnn_max_pool2d mkldnn_max_pool3d",
    kind=Kind.REDUCTION,
)
def pool(call: Call) -> Cost:
    """Each result compares, or adds up, its window: r * k."""
    return one_pass(call, flops=result(call).elements * window(call))


@rule("avg_pool2d_backward avg_pool3d_backward", kind=Kind.REDUCTION)
def avg_pool_backward(call: Call) -> Cost:
    """Each gradient is added to its k inputs. Their values are not read, only their shape."""
    flops = call.tensor("grad_output").elements * window(call)
    return one_pass(call, flops=flops, unread=("self",))


@rule(
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d"
    " _adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"
    " mkldnn_adaptive_avg_pool2d",
    kind=Kind.REDUCTION,
)
def adaptive_pool(call: Call) -> Cost:
    """Windows tile the input: n steps, or one for each result where there are more of those."""
    return one_pass(call, flops=max(call.inputs[0].elements, result(call).elements))


@rule(
    "_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_avg_pool3d_backward"
    " mkldnn_adaptive_avg_pool2d_backward",
    kind=Kind.REDUCTION,
)
def adaptive_avg_pool_backward(call: Call) -> Cost:
    n = max(call.tensor("grad_output").elements, result(call).elements)
    return one_pass(call, flops=n, unread=("self",))


rules(
    Kind.REDUCTION,
    PerElement("max_unpool2d max_unpool3d"),
    # Each gradient is added where its maximum was, by the saved indices.
    PerElement(
        "max_pool2d_with_indices_backward max_pool3d_with_indices_backward"
        " fractional_max_pool2d_backward fractional_max_pool3d_backward"
        " adaptive_max_pool2d_backward adaptive_max_pool3d_backward",
        flops=1,
        of="grad_output",
        unread=("self",),
    ),
)

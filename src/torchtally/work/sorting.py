"""Sorting, selecting and searching: a FLOP is a compare.

n: elements of a row.  k: elements selected.  b: boundaries searched.

Sorting takes n * log2(n) compares by convention, the bound of any sort that compares (Knuth, The
Art of Computer Programming 3, 5.3.1); kernels that sort by radix compare nothing. Selecting k takes
n * log2(k), a heap of k. Logarithms are rounded up.
"""

from torchtally.trace import Call
from torchtally.work.cost import Cost
from torchtally.work.rule import Kind, PerElement, integer, one_pass, result, rule, rules


def log2_up(n: int) -> int:
    """The least exponent, at least 1, whose power of two reaches n."""
    return max(1, (n - 1).bit_length())


def row(call: Call, default_dim: int = -1) -> int:
    """n: the length of the dimension sorted along."""
    shape = call.tensor("self").shape
    return shape[integer(call, "dim", default_dim)] if shape else 1


@rule("sort argsort mode msort", kind=Kind.SORTING)
def sort(call: Call) -> Cost:
    """log2(n) compares for each element; msort's rows are its columns."""
    n = row(call, default_dim=0 if call.name == "aten.msort" else -1)
    return one_pass(call, flops=call.tensor("self").elements * log2_up(n))


@rule("topk", kind=Kind.SORTING)
def topk(call: Call) -> Cost:
    """log2(k) compares for each element."""
    k = integer(call, "k", 1)
    return one_pass(call, flops=call.tensor("self").elements * log2_up(k))


@rule("quantile nanquantile", kind=Kind.SORTING)
def quantile(call: Call) -> Cost:
    """The input sorted as one row, and a lerp for each result."""
    n = call.tensor("self").elements
    return one_pass(call, flops=n * log2_up(n) + 3 * result(call).elements)


@rule("_unique _unique2 unique_dim", kind=Kind.SORTING)
def unique(call: Call) -> Cost:
    """Sort, then compare neighbours."""
    n = call.tensor("self").elements
    return one_pass(call, flops=n * log2_up(n) + n)


@rule("_coalesce", kind=Kind.SORTING)
def coalesce(call: Call) -> Cost:
    """The indices of the values sorted, then a value added to its neighbour."""
    values = call.tensor("self")
    n = values.shape[0]
    return one_pass(call, flops=n * log2_up(n) + values.elements)


@rule("searchsorted bucketize", kind=Kind.SORTING)
def search(call: Call) -> Cost:
    """A binary search for each result: log2(b) compares."""
    table = call.tensors("sorted_sequence") or call.tensors("boundaries")
    b = table[0].shape[-1] if table[0].shape else 1
    return one_pass(call, flops=result(call).elements * log2_up(b))


rules(
    Kind.SORTING,
    PerElement("kthvalue", 1, "self"),  # as quickselect takes on average, up to a constant
    PerElement("unique_consecutive unique_dim_consecutive", 1, "self"),
)

"""Reading and writing by index.

n: elements picked out of a table, or written into it.  D: elements of one row.

A table is read where the indices point, never more than the whole of it once; writing into it in
place touches as much. The functional forms (`index_put`, without the underscore) copy the table
first: read whole, written whole. Which elements a boolean mask picks is a value: where no shape
tells how many, all.
"""

from math import prod

from torchtally.trace import Call, TensorSpec
from torchtally.work.arithmetic import add_flops
from torchtally.work.cost import Cost
from torchtally.work.rule import (
    FIRST,
    RULES,
    Kind,
    PerElement,
    is_set,
    one_pass,
    result,
    rule,
    rules,
)


def rows_bytes(spec: TensorSpec, elements: int) -> int:
    """Bytes of so many elements of a table, at most of all; none of a host table."""
    return min(elements * spec.itemsize_bytes, spec.bytes) if spec.is_on_device else 0


def touch(call: Call, *, table: str, elements: int, flops: int = 0) -> Cost:
    """Cost as by `one_pass`, but of the table only so many elements are read."""
    rest = one_pass(call, flops=flops, unread=(table,))
    return rest + Cost(bytes_read=rows_bytes(call.tensor(table), elements))


def store(call: Call, *, elements: int, adds: bool = False, source: str = "source") -> Cost:
    """Writing so many elements into `self`; `adds` when they are read and combined first.

    Of the source as many are read. A functional form copies the whole table, which reads it once.
    """
    table = call.tensor("self")
    flops = elements * add_flops(table) * adds
    rest = one_pass(call, flops=flops, unread=("self", source), unwritten=("self",))
    source_bytes = sum(rows_bytes(spec, elements) for spec in call.tensors(source))
    if not table.is_written:
        return rest + Cost(bytes_read=source_bytes + rows_bytes(table, table.elements))
    in_table = rows_bytes(table, elements)
    return rest + Cost(bytes_read=source_bytes + in_table * adds, bytes_written=in_table)


@rule("embedding", kind=Kind.INDEXING)
def embedding(call: Call) -> Cost:
    """One row for each index, at most the whole table once."""
    return touch(call, table="weight", elements=result(call).elements)


@rule("_embedding_bag _embedding_bag_forward_only embedding_bag", kind=Kind.INDEXING)
def embedding_bag(call: Call) -> Cost:
    """One row for each index, added up bag by bag."""
    n = call.tensor("indices").elements * call.tensor("weight").shape[-1]
    return touch(call, table="weight", elements=n, flops=n)


@rule("_embedding_bag_dense_backward _embedding_bag_backward", kind=Kind.INDEXING)
def embedding_bag_backward(call: Call) -> Cost:
    """The gradient of a bag is added to the row of each of its indices."""
    n = call.tensor("indices").elements * call.tensor("grad").shape[-1]
    return one_pass(call, flops=n)


@rule("_embedding_bag_per_sample_weights_backward", kind=Kind.INDEXING)
def embedding_bag_weights_backward(call: Call) -> Cost:
    """A dot product of a row and its bag's gradient, for each index: 2n."""
    n = call.tensor("indices").elements * call.tensor("weight").shape[-1]
    return touch(call, table="weight", elements=n, flops=2 * n)


@rule(
    "index index_select gather take take_along_dim _unsafe_index _unsafe_masked_index"
    " masked_select",
    kind=Kind.INDEXING,
)
def pick(call: Call) -> Cost:
    """Cost of as many elements as the result has."""
    return touch(call, table="self", elements=result(call).elements)


@rule("scatter scatter_add scatter_reduce", kind=Kind.INDEXING)
def scatter(call: Call) -> Cost:
    """One element for each index, of the source too."""
    always = call.name.startswith(("aten.scatter_add", "aten.scatter_reduce"))
    adds = always or bool(call.literal("reduce"))
    n = call.tensor("index").elements
    return store(call, elements=n, adds=adds, source="src")


@rule("add_ sub_", kind=Kind.ELEMENTWISE)
def add_in_place(call: Call) -> Cost:
    """Cost of adding a sparse tensor's values where their indices say: CUDA's kernel calls
    `index_add_` (add_out_dense_sparse_cuda,
    aten/src/ATen/native/sparse/cuda/SparseCUDATensorMath.cu).
    """
    if is_sparse_sum(call):
        return store(call, elements=call.tensor("other").elements, adds=True, source="other")
    return RULES[call.name.removesuffix("_")].formula(call)


def is_sparse_sum(call: Call) -> bool:
    """Whether a sparse tensor is added to a dense one."""
    return call.plain_name in ("add", "sub") and bool(call.tensors("indices0"))


@rule("index_add index_reduce index_copy", kind=Kind.INDEXING)
def index_add(call: Call) -> Cost:
    adds = "index_copy" not in call.name
    return store(call, elements=call.tensor("source").elements, adds=adds)


@rule("put", kind=Kind.INDEXING)
def put(call: Call) -> Cost:
    return store(call, elements=call.tensor("index").elements, adds=is_set(call, "accumulate"))


@rule("flex_lib.zeros_and_scatter", kind=Kind.INDEXING)
def zeros_and_scatter(call: Call) -> Cost:
    """Cost in `flex_attention`: zeros are made, and each value is added where its indices point."""
    out, n = result(call), call.tensor("vals").elements
    in_table = rows_bytes(out, n)
    added = Cost(bytes_read=in_table, bytes_written=in_table)
    return one_pass(call, flops=n * add_flops(out)) + added


@rule("index_fill", kind=Kind.INDEXING)
def index_fill(call: Call) -> Cost:
    """A slice for each index. The value given may be a tensor."""
    table, dim = call.tensor("self").shape, call.literal("dim")
    length = table[dim] if isinstance(dim, int) and table else 1
    D = prod(table) // length if length else 0
    return store(call, elements=D * call.tensor("index").elements)


@rule(
    "index_put _index_put_impl _unsafe_index_put _unsafe_masked_index_put_accumulate",
    kind=Kind.INDEXING,
)
def index_put(call: Call) -> Cost:
    adds = is_set(call, "accumulate") or call.name.endswith("accumulate")
    return store(call, elements=put_elements(call), adds=adds)


def put_elements(call: Call) -> int:
    """Elements that `self[indices]` has.

    Indices are assumed to stand for the first dimensions: where a slice comes before them the
    record does not say. With a mask the values tell how many, if there is more than one.
    """
    table, values = call.tensor("self"), call.tensor("values")
    indices = call.tensors("indices")
    if any(spec.dtype in ("bool", "uint8") for spec in indices):
        return values.elements if values.elements > 1 else table.elements
    rows = max((spec.elements for spec in indices), default=1)
    return max(values.elements, rows * prod(table.shape[len(indices) :]))


@rule("masked_scatter", kind=Kind.INDEXING)
def masked_scatter(call: Call) -> Cost:
    return store(call, elements=call.tensor("self").elements)


rules(
    Kind.INDEXING,
    # Every row of the gradient is added to its row of a full weight gradient.
    PerElement("embedding_dense_backward embedding_backward", 1, FIRST),
    PerElement("col2im", 1, "self"),  # every column's element is added to its place
    # All of what comes in goes somewhere.
    PerElement(
        "nonzero nonzero_static nonzero_numpy argwhere masked_scatter_backward"
        " masked_select_backward index_select_backward gather_backward"
        " value_selecting_reduction_backward one_hot repeat_interleave _pack_padded_sequence"
        " _pack_padded_sequence_backward _pad_packed_sequence pad_sequence unfold_backward im2col"
        " _jagged_to_padded_dense_forward _padded_dense_to_jagged_forward"
    ),
)

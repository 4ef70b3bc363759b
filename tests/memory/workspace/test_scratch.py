"""Operators' scratch memory: each rule against what PyTorch's CUDA build was seen to allocate.

A recorded row is a whole call of a user's, backward pass and all: it may hold other operators'
tensors besides. What a rule says must be among them.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import spec
from tests.memory.workspace.recorded import H100, Row, call, missing, rows, sizes
from torchtally.memory.workspace import has_scratch, scratch
from torchtally.memory.workspace.scratch import RULES
from torchtally.trace import Call

ATTENTION = "scaled_dot_product_attention "
PREFIX = "aten._scaled_dot_product_"


def normalised(row: Row, name: str, **literals: Any) -> Call:
    """The backward pass of a norm with a weight."""
    inputs = (row.spec(0, "grad_out"), row.spec(0, "input"), row.spec(1, "weight"))
    return call(name, inputs, (row.spec(0, ""), row.spec(1, "")), **literals)


def attention(row: Row, kernel: str) -> Call:
    query, key, value = (row.spec(at, name) for at, name in enumerate(("query", "key", "value")))
    gradient, out = replace(query, argument="grad_out"), replace(query, argument="out")
    name = f"{PREFIX}{kernel}_attention_backward"
    return call(name, (gradient, query, key, value, out), (query, key, value))


def embedding(row: Row) -> Call:
    count = row.spec(1, "indices")
    gradient = spec(count.elements, row.shapes[0][1], argument="grad_output")
    return call("aten.embedding_dense_backward", (gradient, count), (row.spec(0, ""),))


def softmax(row: Row) -> Call:
    inputs = row.spec(0, "grad_output"), row.spec(0, "output")
    return call("aten._softmax_backward_data", inputs, (row.spec(0, ""),))


def group_norm(row: Row) -> Call:
    inputs = (row.spec(0, "input"), row.spec(1, "weight"), row.spec(2, "bias"))
    return call("aten.native_group_norm", inputs, (row.spec(0, ""),), group=8)


def ordered(row: Row) -> Call:
    return call("aten.sort", (row.spec(0, "self"),), (row.spec(0, ""),), dim=-1)


def test_softmax_backward_to_the_byte() -> None:
    for row in rows("softmax backward"):
        assert sizes(softmax(row)) == list(row.temporaries_bytes), str(row)


def test_group_norm_to_the_byte() -> None:
    for row in rows("group_norm"):
        assert sorted(sizes(group_norm(row))) == sorted(row.temporaries_bytes), str(row)
    for row in rows("group_norm backward"):
        sizes_bytes = sizes(normalised(row, "aten.native_group_norm_backward", group=8))
        assert sorted(sizes_bytes) == sorted(row.temporaries_bytes), str(row)


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("layer_norm backward", "aten.native_layer_norm_backward"),
        ("rms_norm backward", "aten._fused_rms_norm_backward"),
    ],
)
def test_layer_norm_backward_of_many_narrow_rows(op: str, name: str) -> None:
    """100,000 rows of 64: 3125 parts of 32 rows each. The weights' sums have buffers of their own.

    Besides, the sums' results (256 bytes) are in the record: they become the gradients.
    """
    for row in rows(op):
        sizes_bytes = sizes(normalised(row, name))
        assert missing(row, sizes_bytes) == [], str(row)
        assert bool(sizes_bytes) is bool(row.temporaries_bytes), str(row)
        if sizes_bytes:
            partial_bytes = 3125 * 64 * row.spec(1, "").itemsize_bytes
            assert sizes_bytes.count(partial_bytes) == (1 if "rms" in op else 2)


@pytest.mark.parametrize("row", rows(f"{ATTENTION}flash_attention backward"), ids=str)
def test_flash_attention_backward_to_the_byte(row: Row) -> None:
    assert sorted(sizes(attention(row, "flash"))) == sorted(row.temporaries_bytes)


@pytest.mark.parametrize(
    "row",
    rows(
        f"{ATTENTION}cudnn_attention backward",
        f"{ATTENTION}default backward",
        f"{ATTENTION}default with mask backward",
    ),
    ids=str,
)
def test_cudnn_attention_backward_to_the_byte(row: Row) -> None:
    """What PyTorch itself chose for bfloat16 (the rows "default") was cuDNN's, too."""
    assert sizes(attention(row, "cudnn")) == list(row.temporaries_bytes)


@pytest.mark.parametrize(
    "row",
    rows(
        f"{ATTENTION}efficient_attention backward",
        f"{ATTENTION}efficient_attention with mask backward",
    ),
    ids=str,
)
def test_efficient_attention_backward_to_the_byte(row: Row) -> None:
    """In fp32 the rows' sums come from a product, gone before the kernel's memory is taken."""
    sizes_bytes = sizes(attention(row, "efficient"))
    assert missing(row, sizes_bytes) == []
    if row.dtypes[0] != "float32":
        assert sorted(sizes_bytes) == sorted(row.temporaries_bytes)


def test_safe_softmax_is_within_the_math_kernels_attention() -> None:
    """Scores of 512 x 512: a bool for each, one for each row, and a zero."""
    for row in rows(f"{ATTENTION}math"):
        batch, heads, queries, _ = row.shapes[0]
        scores = spec(batch, heads, queries, row.shapes[1][2], argument="self")
        sizes_bytes = sizes(call("aten._safe_softmax", (scores,), (replace(scores, argument=""),)))
        assert sizes_bytes == [scores.elements, batch * heads * queries, 4]
        assert missing(row, sizes_bytes) == [], str(row)


def test_embedding_backward_above_3072_indices() -> None:
    """Known limit: the number of different indices. Partial sums are bounded from above."""
    exact = 0
    for row in rows("embedding backward", "embedding padded backward"):
        sizes_bytes = sizes(embedding(row))
        (vocabulary, width), indices = row.shapes[0], row.spec(1, "").elements
        if indices <= 3072:
            assert sizes_bytes == list(row.temporaries_bytes) == []
            continue
        parts = indices // 10 + min(indices, vocabulary)
        assert sizes_bytes == [8 * indices] * 5 + [8 * parts, 4 * parts * width]
        if indices <= vocabulary:
            assert missing(row, sizes_bytes) == [], str(row)
            exact += 1
        else:
            assert missing(row, sizes_bytes) == [4 * parts * width], str(row)
            assert max(row.temporaries_bytes) < 4 * parts * width
    assert exact == 7


def test_sorting_by_rows() -> None:
    """Up to 4096 in a row to the byte; above, the radix sort's own to within its blocks."""
    for row in rows("sort", "sort stable", "argsort"):
        sizes_bytes = sizes(ordered(row))
        count, itemsize_bytes = row.spec(0, "").elements, row.spec(0, "").itemsize_bytes
        if row.shapes[0][-1] <= 4096:
            assert sizes_bytes == [8 * row.shapes[0][-1]]
            assert missing(row, sizes_bytes) == [], str(row)
            continue
        radix_bytes = (8 + itemsize_bytes) * count
        assert missing(row, sizes_bytes) == [radix_bytes], str(row)
        own_bytes = max(row.temporaries_bytes)
        assert radix_bytes < own_bytes < 1.02 * radix_bytes + 65536, str(row)


def test_few_long_rows_are_sorted_as_one() -> None:
    """64 rows of 5000 take the rows' numbers along, 512 rows of 50,257 do not."""
    few, many = spec(64, 5000, argument="self"), spec(512, 50257, argument="self")
    assert sizes(call("aten.sort", (few,), (few,))) == [2560000, 3840000, 2560000, 1280000]
    assert sizes(call("aten.sort", (many,), (many,))) == [8 * 25731584, 12 * 25731584]


def test_random_permutations() -> None:
    """Of a million: three times 8 MB to the byte, the sort's own to 2 %. Of fewer, an upper bound:

    PyTorch takes keys of 32 bits where those are enough.
    """
    for row in rows("randperm"):
        count = int(row.literals)
        sizes_bytes = sizes(call("aten.randperm", (), (spec(count, dtype="int64"),)))
        assert sizes_bytes == [8 * count] * 3 + [16 * count]
        if count == 1_000_000:
            assert missing(row, sizes_bytes) == [16 * count]
            assert max(row.temporaries_bytes) == pytest.approx(16 * count, rel=0.02)
        else:
            assert sum(row.temporaries_bytes) < sum(sizes_bytes)


def test_index_put_sorts_its_indices_where_it_accumulates() -> None:
    for row in rows("index_put_ accumulate"):
        inputs = row.spec(0, "self"), row.spec(1, "indices"), row.spec(2, "values")
        count = row.spec(1, "").elements
        sizes_bytes = sizes(call("aten.index_put_", inputs, (inputs[0],), accumulate=True))
        assert sizes_bytes == [8 * count] * 5 + [16 * count]
        assert missing(row, sizes_bytes) == [16 * count]  # the radix sort's own
        if count > 100:  # so few are sorted without it
            own_bytes = max(row.temporaries_bytes)
            assert 16 * count < own_bytes < 1.02 * 16 * count + 8192
    for row in rows("index_put_"):
        inputs = row.spec(0, "self"), row.spec(1, "indices"), row.spec(2, "values")
        assert sizes(call("aten.index_put_", inputs, (inputs[0],))) == []
        assert 16 * row.spec(1, "").elements not in row.temporaries_bytes


def test_norms_of_lists_to_the_byte() -> None:
    """Chunks of 65,536 of the longest: two tensors of a million have 16 each, 4 bytes a chunk."""
    for row in rows("_foreach_norm"):
        inputs = tuple(row.spec(at, "self") for at in range(len(row.shapes)))
        assert sizes(call("aten._foreach_norm", inputs, ())) == list(row.temporaries_bytes)
    for op in ("get_total_norm", "clip_grad_norm_"):
        for row in rows(op):
            inputs = tuple(row.spec(at, "self") for at in range(len(row.shapes)))
            assert missing(row, sizes(call("aten._foreach_norm", inputs, ()))) == []
    assert sizes(call("aten._foreach_norm", (), ())) == []


# Laws ------------------------------------------------------------------------------------------


def test_a_rule_that_is_off_by_one_byte_is_noticed() -> None:
    row = next(row for row in rows("group_norm backward"))
    sizes_bytes = sizes(normalised(row, "aten.native_group_norm_backward", group=8))
    assert missing(row, sizes_bytes) == []
    assert missing(row, [sizes_bytes[0] + 1, *sizes_bytes[1:]]) == [sizes_bytes[0] + 1]
    assert missing(row, [*sizes_bytes, sizes_bytes[0]]) == [
        sizes_bytes[0]
    ]  # once too often is too much


def test_what_has_no_rule_takes_nothing() -> None:
    plain = call("aten.add", (spec(1000, argument="self"),), (spec(1000),))
    assert not has_scratch("aten.add")
    assert scratch(plain, H100) == ()
    assert all(has_scratch(name) for name in RULES)


def test_weights_that_were_not_given_have_no_gradients() -> None:
    source = spec(100_000, 64, argument="input")
    assert sizes(call("aten.native_layer_norm_backward", (source,), (source,))) == []

"""The buffers of PyTorch's reduction kernel: every recorded reduction, to the byte."""

from dataclasses import replace

import pytest

from tests.builders import spec
from tests.memory.workspace.recorded import H100, Row, call, rows, sizes
from torchtally.chips import chip
from torchtally.memory.workspace import scratch
from torchtally.memory.workspace.reductions import (
    KEEPS_DTYPE,
    REDUCTIONS,
    TAKES_PAIRS,
    join_dimensions,
)
from torchtally.trace import Call

MIB = 1 << 20
NAMES = {
    "sum": "aten.sum",
    "sum dims": "aten.sum",
    "sum to float32": "aten.sum",
    "mean": "aten.mean",
    "norm": "aten.linalg_vector_norm",
    "max": "aten.max",
    "argmax": "aten.argmax",
    "std": "aten.std",
    "any": "aten.any",
}
RESULTS = {"argmax": "int64", "any": "bool", "sum to float32": "float32"}
ROWS = rows(*NAMES)


def reduction(row: Row) -> Call:
    """The call of a row: all of it, one dimension ("dim=0") or the first two."""
    shape = row.shapes[0]
    dims: tuple[int, ...] | None = (0, 1) if row.op == "sum dims" else None
    if row.literals:
        dims = (int(row.literals.removeprefix("dim=")),)
    kept = () if dims is None else tuple(n for at, n in enumerate(shape) if at not in dims)
    outputs = [spec(*kept, dtype=RESULTS.get(row.op, row.dtypes[0]))]
    if row.op == "max" and dims is not None:
        outputs.append(spec(*kept, dtype="int64"))
    dim = dims[0] if dims is not None and row.op == "max" else dims
    return call(NAMES[row.op], (row.spec(0, "self"),), tuple(outputs), dim=dim)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_recorded_reduction_to_the_byte(row: Row) -> None:
    assert sorted(sizes(reduction(row))) == sorted(row.temporaries_bytes)


def test_the_record_holds_both_ways() -> None:
    """Some need buffers and some do not: neither an empty rule nor a lavish one would pass."""
    assert len(ROWS) == 149
    assert 40 < sum(not row.temporaries_bytes for row in ROWS) < 60


def test_another_chip_would_be_noticed() -> None:
    """A GPU with two multiprocessors less needs other buffers than the record's."""
    smaller = replace(H100, multiprocessors=130)
    noticed = [
        row
        for row in ROWS
        if sorted(workspace.bytes for workspace in scratch(reduction(row), smaller))
        != sorted(row.temporaries_bytes)
    ]
    assert len(noticed) > 50


def test_the_rows_of_a_matrix_by_hand() -> None:
    """4096 x 4096 summed over its rows, as every bias's gradient is.

    A thread makes 4 results at once, so a block has 512 / 4 = 128 threads: 32 along the columns,
    which is 128 results a block and 32 blocks, and 4 along the rows, which is 1024 values a thread.
    132 multiprocessors hold 16 blocks of 128 threads each, 2112: 66 blocks could share a result,
    1024 values of at least 16 allow for 64. Partial results: 4 bytes x 4096 x 64 x (32 x 4).
    """
    sizes_bytes = sizes(
        call("aten.sum", (spec(4096, 4096, argument="self"),), (spec(4096),), dim=(0,))
    )
    assert sizes_bytes == [4 * 4096 * 64 * 32 * 4, 4 * 32]
    assert sizes_bytes[0] == 128 * MIB  # twice the matrix


def test_nothing_is_needed_where_there_is_nothing_to_share() -> None:
    for shape in ((0,), (1,), (100,), (1, 1), (0, 5)):
        assert sizes(call("aten.sum", (spec(*shape, argument="self"),), (spec(),))) == []
    row = call("aten.sum", (spec(4096, 1, argument="self"),), (spec(4096),), dim=(1,))
    assert sizes(row) == []  # a dimension of one is not reduced


def test_a_chip_whose_multiprocessors_nobody_gives_needs_nothing() -> None:
    big = call("aten.sum", (spec(10**6, argument="self"),), (spec(),))
    assert scratch(big, replace(H100, multiprocessors=None)) == ()
    assert [workspace.bytes for workspace in scratch(big, H100)] == [492, 4]


def test_chips_with_fewer_resident_threads_share_among_fewer_blocks() -> None:
    """An RTX 4090's 128 multiprocessors hold 1536 threads each, 3 blocks of 512 rather than 4."""
    big = call("aten.sum", (spec(2**25, argument="self"),), (spec(),))
    assert [workspace.bytes for workspace in scratch(big, H100)] == [4 * 132 * 4, 4]
    assert [workspace.bytes for workspace in scratch(big, chip("RTX-4090"))] == [4 * 128 * 3, 4]


def test_a_partial_result_is_wider_than_a_result_where_it_must_be() -> None:
    sizes_of = {
        name: sizes(
            call(name, (spec(10**6, argument="self", dtype="bfloat16"),), (spec(dtype="bfloat16"),))
        )
        for name in ("aten.amax", "aten.sum", "aten.var")
    }
    assert sizes_of == {
        "aten.amax": [2 * 123, 4],
        "aten.sum": [4 * 123, 4],
        "aten.var": [16 * 123, 4],
    }


def test_every_reduction_has_one_kind() -> None:
    assert not TAKES_PAIRS & KEEPS_DTYPE
    assert set(NAMES.values()) <= REDUCTIONS


def test_dimensions_that_follow_one_another_are_one() -> None:
    assert join_dimensions([(8, 512 * 3072), (512, 3072)]) == [(4096, 3072)]
    assert join_dimensions([(3, 100), (1, 7), (10, 1)]) == [(10, 1), (3, 100)]
    assert join_dimensions([(1, 1)]) == []

"""Execution traces: the arguments that they have and Kineto lacks."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.profiles.kineto_files import TraceMaker
from torchtally.errors import TraceFileError, UsageError
from torchtally.ledger import Ledger, account
from torchtally.profiles import is_execution_trace, read_execution_trace, read_kineto
from torchtally.runs.explaining import explain

MATRIX = [64, 64]


def node(number: int, name: str, inputs: list[tuple[Any, Any, str, Any]]) -> dict[str, Any]:
    """In the newest schema. `inputs`: (value, shape, type, strides)."""
    values, shapes, types, strides = (list(column) for column in zip(*inputs, strict=True))
    return {
        "id": number + 100,
        "name": name,
        "ctrl_deps": 2,
        "inputs": {"values": values, "shapes": shapes, "types": types, "strides": strides},
        "outputs": {"values": [], "shapes": [], "types": [], "strides": []},
        "attrs": [
            {"name": "rf_id", "type": "uint64", "value": number},
            {"name": "op_schema", "type": "string", "value": ""},
        ],
    }


def matrix(dtype: str, strides: tuple[int, int] = (64, 1)) -> tuple[Any, Any, str, Any]:
    return [6, 7, 0, 4096, 2, "cuda:0"], MATRIX, f"Tensor({dtype})", list(strides)


def matrices(*dtypes: str) -> tuple[Any, Any, str, Any]:
    count = len(dtypes)
    kinds = ",".join(f"Tensor({dtype})" for dtype in dtypes)
    return [[6, 7, 0]] * count, [MATRIX] * count, f"GenericList[{kinds}]", [[64, 1]] * count


NUMBER = (1, [], "Int", [])
NODES = [
    node(11, "aten::mm", [matrix("c10::Half"), matrix("c10::Half", (1, 64))]),
    node(12, "aten::_foreach_mul_", [matrices("float", "c10::Half"), (0.5, [], "Double", [])]),
    node(
        13, "aten::index",
        [matrix("c10::Half"), ([[8, 9, 0]], [[16]], "GenericList[Tensor(long int)]", [[1]])],
    ),
    node(14, "aten::sum", [matrix("c10::Half"), ([1], [[]], "GenericList[Int]", [[]]),
                           (False, [], "Bool", []), ("<None>", [], "None", [])]),
]  # fmt: skip


def execution_file(tmp_path: Path, nodes: list[Any] | None = None) -> Path:
    path = tmp_path / "et.json"
    document = {
        "schema": "1.1.1-chakra.0.0.4",
        "pid": 1,
        "nodes": NODES if nodes is None else nodes,
    }
    path.write_text(json.dumps(document))
    return path


def kineto_file(tmp_path: Path, link: str = "Record function id") -> Path:
    """A run without `record_shapes`."""
    maker = TraceMaker()
    for place, number in enumerate((11, 12, 13, 14)):
        at = 10 + 100 * place
        name = NODES[place]["name"]
        maker.operator(name, at, 50, **{link: number})
        maker.kernel("unnamed_kernel", at + 10, at + 20, 30)
    return maker.write(tmp_path / "trace.json")


def ledger_of(tmp_path: Path, link: str = "Record function id") -> Ledger:
    trace, execution = kineto_file(tmp_path, link), execution_file(tmp_path)
    ledger = account(explain(str(trace), None, str(execution)))
    ledger.check()
    return ledger


@pytest.mark.parametrize("link", ["Record function id", "External id"])
def test_operators_have_the_arguments_of_their_record_function(tmp_path: Path, link: str) -> None:
    ledger = ledger_of(tmp_path, link)
    assert ledger.coverage.uncounted == ()
    assert ledger.by_op()["aten.mm"].flops == 2 * 64**3
    # Each matrix is read and written: one of four bytes an element, one of two.
    assert ledger.by_op()["aten._foreach_mul_"].bytes == 2 * (4 + 2) * 64**2
    # 16 rows of 64 halves read and written, and 16 indices of eight bytes.
    assert ledger.by_op()["aten.index"].bytes == 2 * 2 * 16 * 64 + 16 * 8
    assert {note.text: note.count for note in ledger.trace.notes} == {
        "operators with their arguments from the execution trace": 4
    }


def test_without_it_the_same_run_has_no_flops(tmp_path: Path) -> None:
    ledger = account(explain(str(kineto_file(tmp_path))))
    assert ledger.total.flops == 0
    assert len(ledger.coverage.uncounted) == 4


def test_strides_are_the_recorded_ones(tmp_path: Path) -> None:
    (product,) = (call for call in ledger_of(tmp_path).trace.calls if call.name == "aten.mm")
    assert [spec.stride for spec in product.inputs] == [(64, 1), (1, 64)]


def test_the_first_schema_is_read(tmp_path: Path) -> None:
    old = {
        "name": "aten::mm", "id": 5, "rf_id": 11, "parent": 1, "seq_id": -1,
        "inputs": [[6, 7, 0, 4096, 2, "cuda:0"]] * 2, "input_shapes": [MATRIX] * 2,
        "input_types": ["Tensor(c10::Half)"] * 2,
        "outputs": [], "output_shapes": [], "output_types": [],
    }  # fmt: skip
    path = execution_file(tmp_path, [old])
    packed = tmp_path / "et.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    for each in (path, packed):
        assert is_execution_trace(str(each))
        profile = read_kineto(str(kineto_file(tmp_path)), read_execution_trace(str(each)))
        first = profile.arguments[profile.operators[0].arguments]
        assert first.shapes == ((64, 64), (64, 64))
        assert first.types == ("c10::Half", "c10::Half")
        assert first.strides is None


def test_another_operator_of_that_number_is_not_taken(tmp_path: Path) -> None:
    nodes = [node(11, "aten::relu", [matrix("float")])]
    execution = read_execution_trace(str(execution_file(tmp_path, nodes)))
    with pytest.raises(TraceFileError, match=r"et.json: none of its calls appear in .*trace.json"):
        read_kineto(str(kineto_file(tmp_path)), execution)


def test_alone_it_has_no_times(tmp_path: Path) -> None:
    path = execution_file(tmp_path)
    assert is_execution_trace(str(path))
    assert not is_execution_trace(str(kineto_file(tmp_path)))
    with pytest.raises(TraceFileError, match=r"no times.\n.*--execution-trace"):
        explain(str(path))


def test_an_export_of_nsight_is_not_joined(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    path.write_bytes(b"SQLite format 3\0")
    with pytest.raises(UsageError, match=r"joined with a trace of torch\.profiler"):
        explain(str(path), None, str(execution_file(tmp_path)))


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"schema": "1.0.1"}', b'{"nodes": 7}', b'{"nodes": [7]}', b"\x1f\x8bno",
     b'{"nodes": [' + b"[" * 9000, b'{"nodes": [{"name": "\xff"}]}', b"\x80\x02}"],
)  # fmt: skip
def test_what_is_none_is_one_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "et.json"
    path.write_bytes(content)
    with pytest.raises(TraceFileError, match=r"et.json: "):
        read_execution_trace(str(path))


def test_hostile_arguments_leave_an_operator_uncounted(tmp_path: Path) -> None:
    bad = [
        node(11, "aten::mm", [matrix("no such type"), matrix("c10::Half")]),
        node(
            12, "aten::_foreach_mul_", [([], [[-1], "x"], "GenericList[Tensor(float)]", 7), NUMBER]
        ),
        node(13, "aten::index", [matrix("c10::Half"), ({}, [1 << 61], "Tensor(long int)", [])]),
        node(14, "aten::sum", [(None, [[[[]]]], "Tensor(float)", None)]),
    ]
    execution = execution_file(tmp_path, bad)
    ledger = account(explain(str(kineto_file(tmp_path)), None, str(execution)))
    ledger.check()
    assert len(ledger.coverage.uncounted) == 4

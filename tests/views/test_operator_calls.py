"""Operator calls: every row's facts, sums of columns, and unknown numbers that stay empty."""

import re
from pathlib import Path

import pytest
from hypothesis import given

from tests.builders import TraceBuilder, factory_call, frame, mm_call, site, unknown_call
from tests.strategies import traces
from torchtally.chips import chip
from torchtally.ledger import account
from torchtally.table import Table
from torchtally.timing.roofline import Roofline
from torchtally.trace import Trace
from torchtally.views.operator_calls import operator_calls

H100 = Roofline(chip("H100-SXM"))


def rows_of(table: Table) -> list[dict[str, object]]:
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


@given(traces())
def test_columns_sum_to_the_ledgers_totals(trace: Trace) -> None:
    ledger = account(trace, roofline=H100)
    table, total = operator_calls(ledger), ledger.total
    assert len(table.rows) == total.count
    for name, expected in (
        ("flops", total.flops),
        ("bytes_read", total.bytes_read),
        ("bytes_written", total.bytes_written),
        ("bytes_allocated", total.bytes_allocated),
        ("bytes_saved", total.bytes_saved),
        ("seconds", pytest.approx(total.seconds)),
        ("kernel_s", pytest.approx(total.kernel_s)),
    ):
        cells = [cell for cell in table.column(name) if isinstance(cell, int | float)]
        assert sum(cells) == expected


def three_calls() -> Trace:
    builder = TraceBuilder()
    builder.run(mm_call(2, 3, 4), [-1, -1], site=site(frame(line=7), module="up"))
    builder.run(unknown_call(), [-1])
    builder.run(factory_call(8), [])
    builder.end_step()
    return builder.build()


def test_a_row_has_all_that_is_known() -> None:
    first, _, last = rows_of(operator_calls(account(three_calls(), roofline=H100)))
    assert {name: first[name] for name in ("rank", "step", "tick", "part_number")} == {
        "rank": 0, "step": 1, "tick": 0, "part_number": 0,
    }  # fmt: skip
    assert first["flops"] == 2 * 2 * 3 * 4
    assert first["bytes_read"] == 4 * (2 * 3 + 3 * 4)
    assert (first["input_shapes"], first["output_shapes"]) == ("[2x3], [3x4]", "[2x4]")
    assert (first["file"], first["line"], first["source"]) == ("train.py", 7, "line_7()")
    assert (first["status"], first["module"], first["stream"]) == ("counted", "up", "stream 0")
    assert first["start_s"] == 0
    assert last["bytes_allocated"] == 512


def test_what_is_unknown_is_empty() -> None:
    _, unknown, _ = rows_of(operator_calls(account(three_calls(), roofline=H100)))
    assert unknown["status"] == "uncounted"
    empty = {name for name, cell in unknown.items() if cell is None}
    assert empty == {"line", "flops", "bytes_read", "bytes_written", "payload_bytes", "kernel_s"}
    without = rows_of(operator_calls(account(three_calls())))
    assert all(row["seconds"] is None and row["bound"] == "" for row in without)
    assert without[0]["flops"] == 48


def test_the_document_names_every_column() -> None:
    text = (Path(__file__).parents[2] / "docs" / "exports.md").read_text()
    table = text[text.index("## Operator calls") :]
    documented = re.findall(r"`([a-z_]+)`", "".join(re.findall(r"(?m)^\| (`[^|]*)\|", table)))
    assert documented == [column.name for column in operator_calls(account(three_calls())).columns]

"""Operator calls as files: what spreadsheets and data frames read."""

import csv
import io
import sys

import pytest

from tests.report.test_text import realistic
from torchtally.chips import chip
from torchtally.errors import UsageError
from torchtally.ledger import Ledger, account
from torchtally.report.exports import export
from torchtally.timing.roofline import Roofline
from torchtally.views.operator_calls import operator_calls


def ledger_of(text: str = "") -> Ledger:
    return account(realistic(text=text), roofline=Roofline(chip("H100-SXM")))


def csv_rows(ledger: Ledger) -> list[dict[str, str]]:
    text = export(ledger, "csv").parts[""]
    assert isinstance(text, str)
    return list(csv.DictReader(io.StringIO(text)))


def test_csv_has_the_names_and_the_rows() -> None:
    rows = csv_rows(ledger_of())
    assert [row["status"] for row in rows] == ["counted", "counted", "uncounted"]
    assert sum(int(row["flops"] or 0) for row in rows) == ledger_of().total.flops
    assert [row["kernel_s"] == "" for row in rows] == [False, False, True]


def test_parquet_has_types_units_and_nulls() -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    ledger = ledger_of()
    content = export(ledger, "parquet").parts[""]
    assert isinstance(content, bytes)
    table = parquet.read_table(io.BytesIO(content))
    assert table.column_names == [column.name for column in operator_calls(ledger).columns]
    kinds = {name: str(table.schema.field(name).type) for name in ("flops", "seconds", "module")}
    assert kinds == {"flops": "int64", "seconds": "double", "module": "string"}
    assert table.schema.field("bytes_read").metadata == {b"unit": b"bytes"}
    assert b'"chip": "H100-SXM"' in table.schema.metadata[b"torchtally"]
    assert table["flops"].null_count == 1
    assert sum(table["flops"].drop_null().to_pylist()) == ledger.total.flops


def test_a_run_of_nothing_has_the_columns() -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    from tests.builders import TraceBuilder

    ledger = account(TraceBuilder().build())
    assert csv_rows(ledger) == []
    content = export(ledger, "parquet").parts[""]
    assert isinstance(content, bytes)
    assert parquet.read_table(io.BytesIO(content)).num_rows == 0


def test_without_pyarrow_the_way_to_get_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"torchtally\[parquet\]"):
        export(ledger_of(), "parquet")


@pytest.mark.parametrize("text", ['a,"b"\n\r"c', "\x00;\ud800", "=1+1"])
def test_hostile_text_stays_in_its_cell(text: str) -> None:
    pytest.importorskip("pyarrow")
    rows = csv_rows(ledger_of(text))
    assert len(rows) == 3
    assert all(None not in row for row in rows)
    export(ledger_of(text), "parquet")

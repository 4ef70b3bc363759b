"""Every operator call of the step as a row of a Parquet file: the columns of `csv`, with types."""

import io
import json
from typing import Any

from torchtally.errors import needed_package
from torchtally.ledger import Ledger
from torchtally.progress import printable
from torchtally.report.exports import Exported, Wanted
from torchtally.table import Cell, Column
from torchtally.views.operator_calls import operator_calls

SUMMARY = "the same as Parquet, for pandas, polars, DuckDB (needs pyarrow)"
SUFFIX = ".parquet"


def export(ledger: Ledger, wanted: Wanted) -> Exported:
    """One file. What is unknown is null. Raises UsageError without the extra `parquet`."""
    pyarrow, parquet = (
        needed_package(name, "--to parquet", "parquet", ", or use --to csv")
        for name in ("pyarrow", "pyarrow.parquet")
    )
    table = operator_calls(ledger)
    about = {
        "script": printable(ledger.trace.script),
        "chip": ledger.trace.chip if ledger.roofline is None else ledger.roofline.chip.name,
        "period": ledger.period,
        "times": "measured" if ledger.is_measured else "predicted" if ledger.is_timed else "none",
    }
    schema = pyarrow.schema(
        [field(column, pyarrow) for column in table.columns],
        metadata={"torchtally": json.dumps(about)},
    )
    columns = zip(*table.rows, strict=True) if table.rows else ((),) * len(table.columns)
    arrays = [
        pyarrow.array([cell_value(cell) for cell in cells], type=own.type)
        for cells, own in zip(columns, schema, strict=True)
    ]
    stream = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=schema), stream)
    return Exported({"": stream.getvalue()})


def field(column: Column, pyarrow: Any) -> Any:
    """Text, whole numbers or fractions; its unit is in the field's metadata."""
    if column.unit.is_text:
        return pyarrow.field(column.name, pyarrow.string())
    kind = pyarrow.int64() if column.unit.is_whole else pyarrow.float64()
    return pyarrow.field(column.name, kind, metadata={"unit": str(column.unit)})


def cell_value(cell: Cell) -> Cell:
    return printable(cell) if isinstance(cell, str) else cell

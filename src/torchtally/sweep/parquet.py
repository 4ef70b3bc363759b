"""Results as Parquet: a file with one row per run, and one with one row per log record.

Both have config values in columns named `config.KEY`. In the second, logged values keep their names
(train/loss, eval/loss), after `run` and `step`.
"""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchtally.errors import UsageError, needed_package
from torchtally.files.atomic import write_atomically
from torchtally.sweep.definition import VERSION, Definition
from torchtally.sweep.results import RunResult, rank_results
from torchtally.sweep.rows import record

PARQUET, WRITING = "pyarrow.parquet", "Writing Parquet"
OF_RUNS = {
    "status": "string", "has_risen": "bool_", "steps": "int64", "first_loss": "float64",
    "final_loss": "float64", "best_loss": "float64", "validation_loss": "float64",
    "best_validation_loss": "float64", "wall_s": "float64", "exit_code": "int64",
    "message": "string",
}  # fmt: skip
"""Columns of a run after its name and values, with types."""


def steps_file(path: Path) -> Path:
    """The path of the second file: results-steps.parquet for results.parquet."""
    return path.with_name(f"{path.stem}-steps{path.suffix}")


def check_parquet(path: Path) -> None:
    """Raise UsageError without the extra `parquet`, or if the folder does not exist."""
    needed_package(PARQUET, WRITING, "parquet")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: its folder does not exist. Create it first.")


def write_parquet(path: Path, definition: Definition, results: Sequence[RunResult]) -> None:
    """Write both files, best run first. Raises UsageError if they cannot be written."""
    best_first = rank_results(results)
    runs = [
        {
            "run": result.point.name,
            **_values(result),
            **{key: record(result)[key] for key in OF_RUNS},
        }
        for result in best_first
    ]
    steps = [
        {"run": result.point.name, **_values(result), "step": step, **values}
        for result in best_first
        for step, values in result.records
    ]
    _write(path, runs, definition)
    _write(steps_file(path), steps, definition)


def _values(result: RunResult) -> dict[str, Any]:
    return {f"config.{key}": value for key, value in result.point.values}


def _write(path: Path, rows: Sequence[dict[str, Any]], definition: Definition) -> None:
    """Columns of a run have the types of `OF_RUNS`, others those of their values."""
    arrow, parquet = (needed_package(n, WRITING, "parquet") for n in ("pyarrow", PARQUET))
    about = {"format_version": str(VERSION), "config": definition.config, "toml": definition.toml}
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        kind = getattr(arrow, OF_RUNS[name])() if name in OF_RUNS else None
        columns[name] = arrow.array([row.get(name) for row in rows], kind)
    table = arrow.table(columns, metadata={"torchtally.sweep": json.dumps(about)})
    stream = io.BytesIO()
    parquet.write_table(table, stream)
    try:
        write_atomically(str(path), stream.getvalue())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}).") from error

"""Results in columns: a Parquet file with a row a run, and one with a row for all that was logged.

Values of the config are columns named `config.KEY`, in both. In the second one what is logged keeps
its names (train/loss, eval/loss), with `run` and `step` before it.
"""

import importlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from torchtally.atomic import write_atomically
from torchtally.errors import UsageError
from torchtally.sweep.definition import Definition
from torchtally.sweep.keys import hint_of, members
from torchtally.sweep.results import RunResult, rank_results
from torchtally.sweep.rows import VERSION, record

SCALARS = {int: "int64", float: "float64", bool: "bool_", str: "string"}
OF_RUNS = {
    "status": str, "has_risen": bool, "steps": int, "first_loss": float, "final_loss": float,
    "best_loss": float, "validation_loss": float, "best_validation_loss": float, "wall_s": float,
    "exit_code": int, "message": str,
}  # fmt: skip
"""Columns of a run after its name and values, and their types."""


def steps_file(path: Path) -> Path:
    """Beside the file of runs: results.parquet has results-steps.parquet."""
    return path.with_name(f"{path.stem}-steps{path.suffix}")


def check_parquet(path: Path) -> None:
    """Raise UsageError without the `parquet` extra, or where the file has no folder to be in."""
    _package("pyarrow.parquet")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: its folder is not there. Make it first.")


def write_parquet(path: Path, definition: Definition, results: Sequence[RunResult]) -> None:
    """Both files, best run first. Raises UsageError where they cannot be written."""
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
    config = {f"config.{key}": _type(hint_of(key)) for key, _ in definition.points[0].values}
    of_runs = {name: _scalar(kind) for name, kind in OF_RUNS.items()}
    logged = {
        name: None for result in best_first for _, values in result.records for name in values
    }
    of_steps = {name: _logged_type(name, steps) for name in logged}
    text = _scalar(str)
    _write(path, runs, {"run": text, **config, **of_runs}, definition)
    _write(
        steps_file(path), steps, {"run": text, **config, "step": _scalar(int), **of_steps},
        definition,
    )  # fmt: skip


def _values(result: RunResult) -> dict[str, Any]:
    return {f"config.{key}": value for key, value in result.point.values}


def _write(
    path: Path, rows: Sequence[dict[str, Any]], columns: dict[str, Any], definition: Definition
) -> None:
    arrow, parquet = _package("pyarrow"), _package("pyarrow.parquet")
    about = {"format_version": str(VERSION), "config": definition.config, "toml": definition.toml}
    schema = arrow.schema(columns.items(), metadata={"torchtally.sweep": json.dumps(about)})
    table = arrow.Table.from_pydict(
        {name: [row.get(name) for row in rows] for name in columns}, schema=schema
    )
    stream = io.BytesIO()
    parquet.write_table(table, stream)
    try:
        write_atomically(str(path), stream.getvalue())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}).") from error


def _type(hint: Any) -> Any:
    """Arrow's type of a config's field."""
    kind = next(member for member in members(hint) if member is not type(None))
    if get_origin(kind) is tuple:
        return _package("pyarrow").list_(_type(get_args(kind)[0]))
    return _scalar(kind if kind in SCALARS else str)


def _scalar(kind: type) -> Any:
    return getattr(_package("pyarrow"), SCALARS[kind])()


def _logged_type(name: str, rows: Sequence[dict[str, Any]]) -> Any:
    """Of a column of logged values: numbers are float64 unless all are whole, others are text."""
    kinds = {type(row[name]) for row in rows if row.get(name) is not None}
    if kinds <= {int}:
        return _scalar(int)
    return _scalar(float if kinds <= {int, float} else str)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"Parquet is written by pyarrow, which is not installed ({error}). "
            'Install it: pip install "torchtally[parquet]".'
        ) from error

"""Results as Parquet: a file with one row per run, and one with one row per log record.

Both have config values in columns named `config.KEY`. In the second, logged values keep their names
(train/loss, eval/loss), after `run` and `step`.
"""

import importlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from torchtally.atomic import write_atomically
from torchtally.errors import UsageError
from torchtally.sweep.definition import VERSION, Definition
from torchtally.sweep.results import RunResult, rank_results
from torchtally.sweep.rows import record
from torchtally.train.keys import hint_of, members

SCALARS = {int: "int64", float: "float64", bool: "bool_", str: "string"}
OF_RUNS = {
    "status": str, "has_risen": bool, "steps": int, "first_loss": float, "final_loss": float,
    "best_loss": float, "validation_loss": float, "best_validation_loss": float, "wall_s": float,
    "exit_code": int, "message": str,
}  # fmt: skip
"""Columns of a run after its name and values, with types."""


def steps_file(path: Path) -> Path:
    """The path of the second file: results-steps.parquet for results.parquet."""
    return path.with_name(f"{path.stem}-steps{path.suffix}")


def check_parquet(path: Path) -> None:
    """Raise UsageError without the extra `parquet`, or if the folder does not exist."""
    _package("pyarrow.parquet")
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
    """The Arrow type of a config field."""
    kind = next(member for member in members(hint) if member is not type(None))
    if get_origin(kind) is tuple:
        return _package("pyarrow").list_(_type(get_args(kind)[0]))
    return _scalar(kind if kind in SCALARS else str)


def _scalar(kind: type) -> Any:
    return getattr(_package("pyarrow"), SCALARS[kind])()


def _logged_type(name: str, rows: Sequence[dict[str, Any]]) -> Any:
    """The Arrow type of logged values: int64 if all are whole, else float64, else text."""
    kinds = {type(row[name]) for row in rows if row.get(name) is not None}
    if kinds <= {int}:
        return _scalar(int)
    return _scalar(float if kinds <= {int, float} else str)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"Writing Parquet needs pyarrow, which is not installed ({error}). "
            'Install it: pip install "torchtally[parquet]".'
        ) from error

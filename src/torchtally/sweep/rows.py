"""Results as a table, and as plain data."""

from collections.abc import Mapping, Sequence
from typing import Any

from torchtally.checkpoints.plain import as_json
from torchtally.sweep.definition import Definition, short_names
from torchtally.sweep.results import RunResult, is_validated, rank_results
from torchtally.table import Cell, Column, Table
from torchtally.train.keys import hint_of, is_number, value_text
from torchtally.units import Unit

KEYS_NEVER_LEFT_OUT = 3


def results_table(
    definition: Definition, results: Sequence[RunResult], marks: Mapping[str, str]
) -> Table:
    """One row per run, best first, with varying keys. `marks`: letters in the chart by run name."""
    short = short_names(definition.varying_keys)
    best_first = rank_results(results)
    by_validation = is_validated(results)
    has_validation = any(result.validation for result in results)
    columns = [
        *([Column("mark", "", Unit.WORD)] if marks else []),
        *(
            Column(
                key,
                short[key],
                Unit.NUMBER if is_number(hint_of(key)) else Unit.WORD,
                rank=0 if n < KEYS_NEVER_LEFT_OUT else 3 + n,
            )
            for n, key in enumerate(definition.varying_keys)
        ),
        *([Column("validation_loss", "validation", Unit.LOSS)] if has_validation else []),
        Column("final_loss", "final loss", Unit.LOSS, rank=0 if not by_validation else 2),
        Column("best_loss", "best loss", Unit.LOSS, rank=3),
        Column("steps", "steps", Unit.COUNT, rank=1),
        Column("wall_s", "time", Unit.SECONDS, rank=2),
        Column("status", "status", Unit.WORD),
    ]
    rows = [_row(definition, result, columns, marks) for result in best_first]
    by = "last validation loss" if by_validation else "last training loss"
    return Table(
        title=f"{definition.config}, {len(results)} run{'s' * (len(results) != 1)} by {by}",
        columns=tuple(columns),
        rows=tuple(rows),
        totals=(None,) * len(columns),
    )


def _row(
    definition: Definition, result: RunResult, columns: Sequence[Column], marks: Mapping[str, str]
) -> tuple[Cell, ...]:
    values = dict(result.point.values)
    cells: dict[str, Cell] = {
        **record(result),
        "mark": marks.get(result.point.name, ""),
        "status": result.remark,
    }
    for key in definition.varying_keys:
        value = values[key]
        is_shown_as_number = is_number(hint_of(key)) and value is not None
        cells[key] = value if is_shown_as_number else value_text(value)
    return tuple(cells[column.name] for column in columns)


def document(definition: Definition, results: Sequence[RunResult]) -> dict[str, Any]:
    """All results as JSON data, best first. Unknown values are null."""
    by_validation = is_validated(results)
    return {
        "config": definition.config,
        "varying": list(definition.varying_keys),
        "ranked_by": "validation_loss" if by_validation else "final_loss",
        "runs": [as_json(record(result)) for result in rank_results(results)],
    }


def record(result: RunResult) -> dict[str, Any]:
    """The results of a run. Losses of language models are in nats per token, times in seconds."""
    return {
        "name": result.point.name,
        "values": dict(result.point.values),
        "status": result.status.value,
        "has_risen": result.has_risen,
        "steps": result.steps,
        "first_loss": result.training[0][1] if result.training else None,
        "final_loss": result.final_loss,
        "best_loss": result.best_loss,
        "validation_loss": result.validation_loss,
        "best_validation_loss": result.best_validation_loss,
        "wall_s": result.ending.wall_s,
        "exit_code": result.ending.exit_code,
        "message": result.ending.message,
    }

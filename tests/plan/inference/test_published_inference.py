"""Published speeds: the rows that no constant was learnt from come out as well."""

from statistics import median

import pytest

from benchmarks import published_inference
from benchmarks.learn_inference import log_error, sustained_engine
from torchtally.plan.inference.engines import at_best, engine


@pytest.fixture(scope="module")
def predictions() -> list[published_inference.Outcome]:
    """All but TensorRT-LLM's, which alone take longer than all others."""
    tables = [each for each in published_inference.TABLES if each.name != "tensorrt_llm"]
    return published_inference.outcomes(tables)


def test_there_are_rows_of_six_tables() -> None:
    rows = list(published_inference.speeds())
    assert len(rows) > 200
    assert len({row.table.name for row in rows}) == 6
    assert 2 * sum(row.half == "B" for row in rows) > len(rows)


def test_rows_that_nothing_was_learnt_from(predictions: list[published_inference.Outcome]) -> None:
    errors = [abs(outcome.ratio - 1) for outcome in predictions if outcome.speed.half == "B"]
    assert median(errors) < 0.15


def test_nothing_is_slower_at_its_best(predictions: list[published_inference.Outcome]) -> None:
    assert all(outcome.best_per_s >= outcome.typical_per_s for outcome in predictions)


def test_learning_tells_constants_apart() -> None:
    """What is shipped leaves less than half of the error that no constants leave."""
    (table,) = (each for each in published_inference.TABLES if each.name == "gpt_fast")
    rows = [row for row in published_inference.speeds([table]) if row.half == "A"]
    who = engine("compiled")
    assert log_error(rows, who) < log_error(rows, at_best(who)) / 2
    assert log_error(rows, sustained_engine(who, passes=0.5)) > log_error(rows, who)

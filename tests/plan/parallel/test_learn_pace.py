"""The line by which the host's constants are learnt."""

import pytest

from benchmarks.learn_pace import half_a, line_through


def test_a_line_through_points_on_it() -> None:
    assert line_through([1, 2, 3], [3, 5, 7]) == (pytest.approx(2), pytest.approx(1))


def test_only_half_a_is_learnt_from() -> None:
    rows = [*half_a(is_one_node=True), *half_a(is_one_node=False)]
    assert {row.half for row in rows} == {"A"}
    assert {row.source.name for row in rows} == {"vtrain", "llm_foundry"}

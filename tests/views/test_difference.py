"""What changed between two runs: lines aligned by their texts, changes that sum to the whole."""

from math import fsum

import pytest

from tests.builders import big_trace
from torchtally.ledger import Ledger, Total, account
from torchtally.ledger.total import Line
from torchtally.timing.targets import roofline
from torchtally.views.difference import DIFFERENCES, align, whole


def lines(*texts: str, file: str = "/a/train.py") -> dict[Line | None, Total]:
    """Each of as many operators as its number says; empty texts are lines without operators."""
    return {
        Line(file, number, text, is_own=True): Total(count=number)
        for number, text in enumerate(texts, 1)
        if text
    }


def test_a_line_that_moved_is_the_same_one() -> None:
    """Two were put before it, one was changed, one is gone; the file lies in another folder."""
    before = lines("import torch", "x = f(1)", "y = g(x)", "z = y + 1")
    after = lines("import torch", "", "new()", "x = f(1)", "y = h(x)", file="/b/train.py")
    rows = {row.label: (row.before.count, row.after.count) for row in align(before, after)}
    assert rows == {
        ("(no line)", "", "both"): (0, 0),
        ("train.py:1", "import torch", "both"): (1, 1),
        ("train.py:3", "new()", "after"): (0, 3),
        ("train.py:4", "x = f(1)", "both"): (2, 4),
        ("train.py:3 (before)", "y = g(x)", "before"): (3, 0),
        ("train.py:4 (before)", "z = y + 1", "before"): (4, 0),
        ("train.py:5", "y = h(x)", "after"): (0, 5),
    }


def test_equal_texts_are_told_apart_by_their_order() -> None:
    before, after = lines("step()", "step()"), lines("step()", "zero()", "step()")
    pairs = [(row.before.count, row.after.count) for row in align(before, after)[1:]]
    assert pairs == [(1, 1), (0, 2), (2, 3)]


@pytest.fixture(scope="module")
def runs() -> tuple[Ledger, Ledger]:
    h100 = roofline("H100-SXM")
    small, large = (account(big_trace(count), roofline=h100) for count in (200, 500))
    return small, large


@pytest.mark.parametrize("name", DIFFERENCES)
def test_changes_sum_to_the_wholes(name: str, runs: tuple[Ledger, Ledger]) -> None:
    table = DIFFERENCES[name](*runs)
    for place, (column, total) in enumerate(zip(table.columns, table.totals, strict=True)):
        cells = [row[place] for row in table.rows]
        numbers = [cell for cell in cells if isinstance(cell, int | float)]
        if total is not None and column.name.endswith("_change"):
            assert fsum(numbers) == pytest.approx(total)
    if name != "category":
        assert table.total("flops_change") == runs[1].total.flops - runs[0].total.flops
        assert table.total("flops_change") != 0


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_run_differs_in_nothing_from_itself(name: str, runs: tuple[Ledger, Ledger]) -> None:
    table = DIFFERENCES[name](runs[0], runs[0])
    if name == "category":
        assert {row[0] for row in table.rows} <= {0}
    else:
        assert table.rows == ()


def test_the_whole_is_before_after_and_the_change(runs: tuple[Ledger, Ledger]) -> None:
    before, after, change = whole(*runs).rows
    assert [row[0] for row in (before, after, change)] == ["before", "after", "change"]
    for old, new, more in zip(before[1:], after[1:], change[1:], strict=True):
        assert isinstance(old, int | float)
        assert isinstance(new, int | float)
        assert more == new - old


def test_without_times_flops_decide() -> None:
    untimed = [account(big_trace(count)) for count in (200, 500)]
    table = DIFFERENCES["line"](untimed[0], untimed[1])
    assert table.total("seconds_change") is None
    assert table.total("flops_change") == untimed[1].total.flops - untimed[0].total.flops

"""A loop or function that a value ended which does not exist is said, and nothing else."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tracer import leaving
from tests.traces import traced
from torchtally.ledger import account
from torchtally.report.text import summary_text
from torchtally.trace import Use
from torchtally.views.summary import summarise

LINES = Path(leaving.__file__).read_text().splitlines()
LEAVING = {
    leaving.breaks: 1, leaving.breaks_in_one_line: 1, leaving.waits: 3, leaving.asks_a_stopper: 3,
    leaving.waits_for_balanced_choices: 3,
    leaving.returns: 1, leaving.converges: 1,
}  # fmt: skip


@pytest.mark.parametrize("script", LEAVING)
def test_what_an_unknown_value_ends_is_said_first(script: Callable[[], None]):
    trace = traced(script)
    assert sys.gettrace() is None
    (left,) = (each for each in trace.placeholders if each.use is Use.EXIT)
    assert left.frame is not None
    assert LINES[left.frame.line - 1].endswith("# left")
    rounds = LEAVING[script]
    assert left.given == f"left after {rounds} {'round' if rounds == 1 else 'rounds'}"
    first = " ".join(summary_text(summarise(account(trace))).split())[:600]
    assert f"leaving.py:{left.frame.line} left after" in first
    assert "A real run may go on for longer." in first


def test_what_ends_by_itself_is_not_said():
    trace = traced(leaving.goes_on)
    assert sys.gettrace() is None
    assert trace.placeholders
    assert all(each.use is not Use.EXIT for each in trace.placeholders)
    assert "left after" not in summary_text(summarise(account(trace)))

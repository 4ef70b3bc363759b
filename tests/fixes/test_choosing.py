"""Which fixes are kept, of runs whose figures are made up."""

from types import SimpleNamespace
from typing import Any, cast

import libcst as cst
import pytest

from torchtally.fixes.choosing import FixGoal, choose
from torchtally.fixes.fix import FileEvidence, Fix, ValueChange
from torchtally.fixes.patch import Patch, ScriptSources
from torchtally.fixes.trial import FixTrial

SOURCES = ScriptSources(
    "/s/train.py", {"/s/train.py": "x = 0\n"}, {"/s/train.py": FileEvidence(frozenset())}
)
CAPACITY = 100


def named(name: str, values: ValueChange = ValueChange.SAME) -> Fix:
    """A fix that adds a line to the script."""

    def rewrite(module: cst.Module, evidence: FileEvidence) -> cst.Module:
        return module.with_changes(body=[*module.body, cst.parse_statement(f"{name} = 1")])

    return Fix(name, name, values, "", rewrite)


def trial(reserved: int, step_s: float = 1.0) -> FixTrial:
    ledger = SimpleNamespace(
        is_timed=True,
        total=SimpleNamespace(seconds=step_s),
        trace=SimpleNamespace(reserved=[SimpleNamespace(bytes=reserved)]),
    )
    return FixTrial(cast(Any, ledger))


def kept(
    goal: FixGoal, fixes: list[Fix], figures: dict[str, FixTrial], before: FixTrial
) -> tuple[tuple[str, ...] | None, list[str]]:
    """Names that are kept, and those of all runs, in order."""
    ran: list[str] = []

    def run(patch: Patch) -> FixTrial:
        ran.append("+".join(fix.name for fix in patch.fixes))
        return figures[ran[-1]]

    choice = choose(before, SOURCES, fixes, goal, run, capacity_bytes=CAPACITY)
    names = None if choice.kept is None else tuple(fix.name for fix in choice.kept.patch.fixes)
    return names, ran


A, B, C = named("a"), named("b"), named("c")


def test_to_fit_takes_no_more_than_are_needed() -> None:
    figures = {"a": trial(120), "b": trial(90), "c": trial(150)}
    assert kept(FixGoal.FIT, [A, B, C], figures, trial(200)) == (("b",), ["a", "b", "c"])


def test_to_fit_what_the_last_makes_needless_is_left_out() -> None:
    """b saves most alone; c must come, and c with a fits without b."""
    rounding = named("c", ValueChange.ROUNDED)
    figures = {
        "a": trial(150), "b": trial(140), "c": trial(130),
        "b+a": trial(120), "b+a+c": trial(60), "a+c": trial(95), "b+c": trial(105),
    }  # fmt: skip
    names, ran = kept(FixGoal.FIT, [A, B, rounding], figures, trial(200))
    assert names == ("a", "c")
    assert ran == ["a", "b", "c", "b+a", "b+a+c", "a+c"]


def test_faster_keeps_what_helps_together() -> None:
    figures = {
        "a": trial(90, 0.8), "b": trial(90, 0.7), "c": trial(90, 0.995),
        "b+a": trial(90, 0.698),
    }  # fmt: skip
    assert kept(FixGoal.FASTER, [A, B, C], figures, trial(90)) == (("b",), ["a", "b", "c", "b+a"])


def test_faster_does_not_leave_the_memory() -> None:
    assert kept(FixGoal.FASTER, [A], {"a": trial(101, 0.1)}, trial(90))[0] is None


def test_a_change_that_fails_is_not_kept() -> None:
    for goal in FixGoal:
        assert kept(goal, [A], {"a": FixTrial(None, "NameError")}, trial(200))[0] is None


def test_a_script_that_fits_is_not_changed_to_fit() -> None:
    assert kept(FixGoal.FIT, [A], {}, trial(90)) == (None, [])


@pytest.mark.parametrize("goal", FixGoal)
def test_less_than_a_hundredth_is_nothing(goal: FixGoal) -> None:
    assert kept(goal, [A], {"a": trial(9950, 0.995)}, trial(10_000))[0] is None

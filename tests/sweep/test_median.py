"""Median stopping: which runs need not go on."""

from pathlib import Path

import pytest

from tests.sweep.sweeps import TEACHER, definition, result
from torchtally.runs.processes import Exit
from torchtally.sweep import stopping
from torchtally.sweep.definition import SweepPoint
from torchtally.sweep.folder import SweepFolder
from torchtally.sweep.median import is_above_median
from torchtally.sweep.progress import Going
from torchtally.sweep.results import LossSeries, RunResult, Status, ending
from torchtally.sweep.stopping import AshaRule, MedianRule


def falling(*losses: float) -> LossSeries:
    return tuple(enumerate(losses, 1))


OTHERS = (falling(4.0, 2.0), falling(6.0, 4.0), falling(9.0, 7.0, 1.0))
"""Means of two steps: 3, 5 and 8."""


def test_the_best_loss_is_compared_with_the_median_of_means() -> None:
    assert not is_above_median(falling(9.0, 5.0), OTHERS)
    assert is_above_median(falling(9.0, 5.1), OTHERS)
    assert not is_above_median(falling(4.9, 50.0), OTHERS)  # its best so far
    assert is_above_median(falling(float("nan")), OTHERS)


def test_only_runs_that_came_as_far_count() -> None:
    """At step 3 one of the others is there: too few to say."""
    assert not is_above_median(falling(9.0, 9.0, 9.0), OTHERS)
    assert not is_above_median(falling(9.0), OTHERS[:2])
    assert not is_above_median((), OTHERS)


def test_a_run_that_was_stopped_so_is_over(tmp_path: Path) -> None:
    asked = ending(Exit("a", 143, 1.0), tmp_path / "none", is_stopping=False, worse=Status.WORSE)
    assert asked.status is Status.WORSE
    assert asked.status.is_final
    ended = ending(Exit("a", 0, 1.0), tmp_path / "none", is_stopping=False, worse=Status.WORSE)
    assert ended.status is Status.ENDED


def test_a_run_at_its_last_step_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked to stop while it ended, and its end was called "above the median"."""
    of_sweep = definition("seed=1,2,3,4,5")
    losses = dict(zip([point.name for point in of_sweep.points],
                      (*OTHERS, falling(9.0, 9.0), falling(9.0, 9.0)), strict=True))  # fmt: skip

    def result_of_point(folder: SweepFolder, point: SweepPoint) -> RunResult:
        return result(point, losses[point.name])

    monkeypatch.setattr(stopping, "result_of", result_of_point)
    moments = iter((0.0, 10.0, 10.0))
    rule = MedianRule(SweepFolder(tmp_path, of_sweep), clock=lambda: next(moments))
    last, other = (point.name for point in of_sweep.points[3:])
    going = {last: Going(last, 2, tmp_path), other: Going(other, 3, tmp_path)}
    assert rule.newly_worse(going) == [other]


def test_asha_keeps_the_best_quarter_at_each_rung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 64 steps runs are looked at after 1, 4 and 16 of them, by Ray Tune's own scheduler."""
    pytest.importorskip("ray.tune")
    of_sweep = definition("seed=1,2,3,4,5", toml=TEACHER.replace("steps = 10", "steps = 64"))
    names = [point.name for point in of_sweep.points]
    losses = dict(zip(names, (falling(1.0), falling(2.0), falling(3.0), falling(0.5, 0.4),
                              ()), strict=True))  # fmt: skip

    def result_of_point(folder: SweepFolder, point: SweepPoint) -> RunResult:
        return result(point, losses[point.name])

    monkeypatch.setattr(stopping, "result_of", result_of_point)
    rule = AshaRule(SweepFolder(tmp_path, of_sweep), clock=iter(range(0, 99, 5)).__next__)
    going = {name: Going(name, 64, tmp_path) for name in names}
    assert rule.newly_worse(going) == names[1:3]  # the first had nothing to be compared with
    assert rule.newly_worse(going) == []

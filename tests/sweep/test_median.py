"""Median stopping: which runs need not go on."""

from pathlib import Path

from torchtally.runs.processes import Exit
from torchtally.sweep.median import is_above_median
from torchtally.sweep.results import LossSeries, Status, ending


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
    asked = ending(Exit("a", 143, 1.0), tmp_path / "none", is_stopping=False, is_worse=True)
    assert asked.status is Status.WORSE
    assert asked.status.is_final
    ended = ending(Exit("a", 0, 1.0), tmp_path / "none", is_stopping=False, is_worse=True)
    assert ended.status is Status.ENDED

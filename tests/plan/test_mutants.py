"""The hand sums reach every formula of the planner and notice a change of any number in one."""

import pytest

from tests.plan import mutants


def test_the_sums_notice_a_changed_number(request: pytest.FixtureRequest) -> None:
    one_in = 1 if request.config.option.thorough else 3
    assert mutants.survivors(one_in=one_in) == ([], [])


def test_numbers_are_changed_one_by_one() -> None:
    assert list(mutants.mutants("2 * layers_0 + 0.5")) == [
        "3 * layers_0 + 0.5",
        "2 * layers_0 + 1.5",
    ]
    assert list(mutants.mutants("a * b")) == ["2 * (a * b) + 1"]


@pytest.mark.thorough("test_the_sums_notice_a_changed_number")
def test_a_change_that_nobody_would_notice_survives() -> None:
    """Sums that only compute, and assert nothing."""
    sums = mutants.reached()
    formula = next(each for each in sums if each[2] == "6 * parameters * tokens")
    changed = mutants.Compiling(formula, "7 * parameters * tokens")
    assert mutants.notices(sums[formula], changed)
    assert not mutants.notices([lambda: None], changed)

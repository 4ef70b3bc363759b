"""Which tests `make test-all` alone runs, so that `make test` takes minutes, on two cores.

Markers beside the tests say so:

    @pytest.mark.thorough                      repeats at length what a shorter test holds
    @pytest.mark.thorough("test_other")        what holds the same rule in `make test`
    @pytest.mark.thorough(cases=("a", "b"))    these cases of it
    @pytest.mark.one_case_in(3)                of a test, or as `pytestmark` of each of a file's,
                                               one case in three, the first among them

Tests that are named on the command line are all run, and so is every test of a room that is named:
after a change in `memory`, `pytest tests/memory`.
"""

from collections import Counter
from collections.abc import Sequence

import pytest

ONE_OF_MANY = {8: 6, 2: 3}
"""Of every other test with more cases than 8 one in six, with more than 2 one in three."""


def without_thorough(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """(those that `make test` runs, the others). Raises UsageError for a case that is not there."""
    kept, left = [], []
    cases = Counter(name_of(item) for item in items)
    seen: Counter[str] = Counter()
    named: set[str] = set()
    for item in items:
        test = name_of(item)
        marks = list(item.iter_markers("thorough"))
        named |= {f"{test}[{case}]" for mark in marks for case in mark.kwargs.get("cases", ())}
        is_thorough = item.nodeid in named or any("cases" not in mark.kwargs for mark in marks)
        is_left = is_thorough or seen[test] % one_in(item, cases[test]) > 0
        seen[test] += 1
        (left if is_left else kept).append(item)
    if missing := named - {item.nodeid for item in left}:
        raise pytest.UsageError(f"pytest.mark.thorough: no such cases: {sorted(missing)}.")
    return kept, left


def name_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def one_in(item: pytest.Item, cases: int) -> int:
    """Of so many cases of the item's test: one in how many is run."""
    mark = item.get_closest_marker("one_case_in")
    if mark is not None:
        return int(mark.args[0])
    return next((step for many, step in ONE_OF_MANY.items() if cases > many), 1)

"""The search alone, told by functions instead of runs."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtally.errors import UsageError
from torchtally.fit.search import FAILURES, GROWTH, Bracket, Search, Trial, Values


def play(
    search: Search,
    limit: int,
    needed: Callable[[int], int],
    fails: Callable[[int], bool] = lambda value: False,
    at_once: int = 2,
) -> tuple[Bracket, int]:
    """The answer and how many rounds it took, where values up to `limit` fit."""
    for rounds in range(200):
        if search.bracket is not None:
            return search.bracket, rounds
        wanted = search.values_to_try(at_once)
        assert 1 <= len(wanted) <= at_once
        assert len(set(wanted)) == len(wanted)
        largest = max([*search.seen, search.values.first * 2 * GROWTH])
        for value in wanted:
            assert value not in search.seen
            assert search.values.first <= value <= search.values.last
            assert value % search.values.multiple == 0
            assert value <= largest * GROWTH
            fits = None if fails(value) else value <= limit
            search.learn(Trial(value, fits, 0 if fits is None else needed(value)))
    raise AssertionError("no end")


def test_an_affine_need_takes_two_rounds() -> None:
    """1000 bytes, and 10 for each: 50 of them fill 1500 bytes."""
    search = Search(Values(), 1500)
    assert search.values_to_try() == (4, 16)
    for value in (4, 16):
        search.learn(Trial(value, fits=True, needed_bytes=1000 + 10 * value))
    assert search.values_to_try() == (50, 51)
    search.learn(Trial(50, fits=True, needed_bytes=1500))
    assert search.bracket is None
    search.learn(Trial(51, fits=False, needed_bytes=1510))
    assert search.bracket == Bracket(largest=50, too_large=51)
    assert search.values_to_try() == ()


def test_a_square_need_is_found_soon() -> None:
    search = Search(Values(multiple=64), 10**9)
    largest, rounds = play(search, 31_622, lambda value: value * value)
    assert largest == Bracket(largest=31_616, too_large=31_680)
    assert rounds <= 8


def test_the_smallest_does_not_fit() -> None:
    largest, _ = play(Search(Values(low=3), 100), 2, lambda value: 50 * value)
    assert largest == Bracket(largest=None, too_large=3)


def test_everything_fits() -> None:
    largest, _ = play(Search(Values(high=1000), 100), 1000, lambda value: 1)
    assert largest == Bracket(largest=1000, too_large=None)


def test_a_single_value() -> None:
    largest, rounds = play(Search(Values(low=8, high=8), 100), 8, lambda value: 1)
    assert (largest, rounds) == (Bracket(largest=8, too_large=None), 1)


def test_no_value() -> None:
    with pytest.raises(UsageError, match="no value to try from 3 to 5 that is a multiple of 8"):
        Values(low=3, high=5, multiple=8)
    with pytest.raises(UsageError, match="no value to try from 3 to 2"):
        Values(low=3, high=2)


def test_odd_values_fail() -> None:
    """Neither fits nor does not: the answer is among the even ones."""
    search = Search(Values(), 1500)
    largest, _ = play(search, 51, lambda value: 1000 + 10 * value, lambda value: value % 2 == 1)
    assert largest == Bracket(largest=50, too_large=52)
    assert 51 in search.failed


def test_a_script_that_always_fails() -> None:
    search = Search(Values(), 1500)
    largest, _ = play(search, 51, lambda value: 1, lambda value: True)
    assert largest == Bracket(largest=None, too_large=None, gave_up=True)
    assert len(search.failed) <= FAILURES + 1


def test_hints_of_a_chip_alike_replace_the_first_round() -> None:
    search = Search(Values(), 1500)
    search.hints = {4: 1040, 16: 1160}
    assert search.values_to_try() == (50, 51)


def test_what_is_not_monotone_is_said() -> None:
    search = Search(Values(high=4), 100)
    for value, fits in ((1, True), (2, False), (3, True)):
        search.learn(Trial(value, fits))
    assert search.bracket == Bracket(largest=1, too_large=2)
    assert not search.is_monotone


@settings(max_examples=400, deadline=None)
@given(
    limit=st.integers(0, 1 << 21),
    low=st.integers(1, 50),
    high=st.integers(1, 1 << 20),
    multiple=st.sampled_from([1, 2, 8, 100]),
    power=st.sampled_from([0.3, 1.0, 1.7, 3.0]),
    bias=st.floats(0.3, 3.0),
    fixed=st.integers(0, 10**9),
    at_once=st.integers(1, 4),
)
def test_any_step_is_found_exactly(
    limit: int, low: int, high: int, multiple: int, power: float, bias: float, fixed: int,
    at_once: int,
) -> None:  # fmt: skip
    """However wrong the guesses are, in rounds as few as bisection's."""
    try:
        values = Values(low, high, multiple)
    except UsageError:
        return
    unit = 10**6
    capacity_bytes = int(fixed + unit * (bias * limit) ** power)
    largest, rounds = play(
        Search(values, capacity_bytes),
        limit,
        lambda value: int(fixed + unit * value**power) + 1,
        at_once=at_once,
    )
    below = limit // multiple * multiple
    above = max(below + multiple, values.first)
    assert largest.largest == (min(below, values.last) if below >= values.first else None)
    assert largest.too_large == (above if above <= values.last else None)
    assert rounds <= 12 + 2 * math.log2(values.last / values.multiple + 2)

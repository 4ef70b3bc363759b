"""Guesses by allocations that grow along straight lines."""

from torchtally.fit.extrapolate import Allocations, Growth

MIB = 1 << 20
EVENTS = (1, 2, -1, -2, 0)
"""Two storages, both alive at one time; then the cache is emptied."""


def growth() -> Growth:
    """20 MiB, and 20 MiB for each: a value of 3 takes 20 + 60."""
    return Growth(
        1, Allocations(EVENTS, (20 * MIB, 20 * MIB)),
        2, Allocations(EVENTS, (20 * MIB, 40 * MIB)), {},
    )  # fmt: skip


def test_sizes_grow_along_a_line() -> None:
    assert growth().sizes(3) == [20 * MIB, 60 * MIB]
    assert growth().sizes(0) == [20 * MIB, 0]


def test_the_allocator_says_what_fits() -> None:
    assert growth().fits(3, 80 * MIB)
    assert not growth().fits(3, 80 * MIB - 1)
    assert growth().fits(0, 20 * MIB)


def test_runs_that_did_other_things_are_not_alike() -> None:
    other = Allocations((1, 2, -2, -1, 0), (1, 1))
    assert growth().is_alike
    assert not Growth(1, growth().first, 2, other, {}).is_alike

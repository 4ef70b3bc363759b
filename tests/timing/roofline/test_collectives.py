"""Collectives over a link of 100 GB/s."""

import pytest

from tests.timing.roofline.chips import kernel_of, toy
from tests.work.calls import call, given
from torchtally.chips import Link
from torchtally.timing.roofline.collectives import ALPHA_S, LINK_SHARE, share_on_link
from torchtally.timing.roofline.kernel import Bound
from torchtally.trace import Call, Literal

N = 25 * 10**6


def collective(name: str, **literals: Literal) -> Call:
    return call(f"_c10d_functional.{name}", [given("input", N)], (N,), **literals)


def test_a_reduction_to_all_crosses_the_link_twice() -> None:
    found = kernel_of(collective("all_reduce"), toy())
    assert found.seconds == pytest.approx(ALPHA_S + 2 * 1e8 / (1e11 * LINK_SHARE))
    assert found.bound is Bound.NETWORK


def test_with_the_ranks_known_a_ring_moves_its_part() -> None:
    assert share_on_link(collective("all_reduce", group_size=8)) == 2 * 7 / 8
    assert share_on_link(collective("all_gather_into_tensor", group_size=4)) == 3 / 4
    assert share_on_link(collective("all_to_all_single")) == 1


def test_a_barrier_takes_nothing_here() -> None:
    assert kernel_of(call("c10d.barrier", []), toy()).seconds == 0.0


def test_an_unknown_link_is_an_error_not_a_guess() -> None:
    with pytest.raises(Exception, match="No source gives the speed"):
        kernel_of(collective("all_reduce"), toy(link=Link("mystery"), host_link=None))

"""Collectives of a layout: volumes by hand, and the time of `timing.network`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.parallel.builders import faster
from torchtally.chips.clusters import cluster
from torchtally.errors import UsageError
from torchtally.plan.parallel.communication import (
    all_gather,
    all_reduce,
    all_to_all,
    group,
    reduce_scatter,
    send,
)
from torchtally.timing.network import RankGroup, collective

GB = 10**9
NODES = cluster("1024xH100-SXM")
COLLECTIVES = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
}


def test_an_all_reduce_sends_twice_the_payload_less_one_piece_in_each_direction() -> None:
    assert all_reduce(8 * GB, RankGroup(8), NODES).sent.value == 2 * 7 * GB


def test_a_gather_sends_half_of_that_and_a_scatter_the_same() -> None:
    gather, scatter = (each(8 * GB, RankGroup(8), NODES) for each in (all_gather, reduce_scatter))
    assert gather.sent.value == scatter.sent.value == 7 * GB
    assert gather.seconds.value == scatter.seconds.value


def test_an_all_to_all_sends_each_partner_its_piece() -> None:
    assert all_to_all(16 * GB, RankGroup(16, 2), NODES).sent.value == 15 * GB


def test_one_chip_is_sent_its_payload_once() -> None:
    inside = send(48 * GB, crosses_nodes=False, cluster=NODES)
    across = send(48 * GB, crosses_nodes=True, cluster=NODES)
    assert inside.sent.value == across.sent.value == 48 * GB
    assert across.seconds.value == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_seconds_are_those_of_the_network_model_and_name_the_way(kind: str) -> None:
    for size in (1000, 10**6, 10**9):
        for ranks in (RankGroup(8), RankGroup(64, 8), RankGroup(16, 16)):
            seconds = COLLECTIVES[kind](size, ranks, NODES)
            expected = collective(kind, size, ranks, NODES)  # type: ignore[arg-type]
            assert seconds.seconds.value == pytest.approx(expected.seconds, rel=1e-12)
            assert seconds.sent.value == expected.sent_bytes
            assert seconds.seconds.note == expected.way.removeprefix("pairwise").strip()


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_one_rank_sends_nothing(kind: str) -> None:
    seconds = COLLECTIVES[kind](GB, RankGroup(1), NODES)
    assert seconds.sent.value == seconds.seconds.value == 0


def test_groups_stand_as_close_as_their_strides_allow() -> None:
    assert group(8, 1, NODES) == RankGroup(8)
    assert group(128, 8, NODES) == RankGroup(128, 128)
    assert group(6, 2, NODES) == RankGroup(6, 2)
    assert group(8, 1, cluster("4xH100-SXM")) == RankGroup(8, 2)


def test_a_link_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(UsageError, match="no source gives it"):
        all_reduce(1, RankGroup(4, 2), cluster("2x2xRTX-4090"))


sizes = st.integers(0, 10**11)
ranks = st.sampled_from([(2, 1), (8, 1), (16, 2), (64, 8), (128, 128), (1024, 128)])


@given(sizes, st.floats(1.0, 10.0), ranks, st.sampled_from(sorted(COLLECTIVES)))
def test_a_faster_network_is_never_slower(
    size: int, times: float, spread: tuple[int, int], kind: str
) -> None:
    """But for the grid of speeds that NCCL's search tries: 2 % at most."""
    slow_s, fast_s = (
        COLLECTIVES[kind](size, RankGroup(*spread), where).seconds.value
        for where in (NODES, faster(NODES, times))
    )
    assert fast_s <= slow_s * 1.02


@given(sizes, ranks)
def test_an_all_reduce_takes_no_longer_than_its_two_halves(
    size: int, spread: tuple[int, int]
) -> None:
    """But for the plateau of rings over nodes, which only an all-reduce has: 1.4 times."""
    whole, scatter, gather = (
        each(size, RankGroup(*spread), NODES).seconds.value
        for each in (all_reduce, reduce_scatter, all_gather)
    )
    assert whole <= (scatter + gather) * 1.4

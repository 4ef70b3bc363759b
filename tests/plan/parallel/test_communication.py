"""Collectives: volumes and steps by hand, and laws."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.parallel.builders import faster
from torchtally.chips.clusters import cluster
from torchtally.errors import UsageError
from torchtally.plan.parallel.communication import (
    RankGroup,
    all_gather,
    all_reduce,
    all_to_all,
    group,
    network,
    reduce_scatter,
    send,
)

GB = 10**9
NODE = network(cluster("8xH100-SXM"))
NODES = network(cluster("1024xH100-SXM"))
COLLECTIVES = (all_reduce, all_gather, reduce_scatter, all_to_all)


def test_a_ring_sends_twice_the_payload_less_one_piece_in_each_direction() -> None:
    found = all_reduce(8 * GB, RankGroup(8, 8), NODE)
    assert found.sent.value == 2 * 7 * GB
    # 14 GB at 82 % of 450 GB/s, and 14 hops of 3.4 us behind 8.4 us.
    assert found.seconds.value == pytest.approx(14 / (0.82 * 450) + 14 * 3.4e-6 + 8.4e-6)
    assert "ring" in found.seconds.note


def test_a_gather_sends_half_of_that_and_a_scatter_the_same() -> None:
    gather, scatter = (
        collective(8 * GB, RankGroup(8, 8), NODE) for collective in (all_gather, reduce_scatter)
    )
    assert gather.sent.value == scatter.sent.value == 7 * GB
    assert gather.seconds.value == scatter.seconds.value


def test_between_nodes_a_ring_has_as_many_wires_as_chips_in_a_node() -> None:
    found = all_gather(1024 * GB, RankGroup(1024, 8), NODES)
    hops = 896 * 3.4e-6 + 127 * 9.6e-6
    assert found.seconds.value == pytest.approx(1023 / (0.82 * 450) + 8.4e-6 + hops, rel=1e-3)
    alone = all_gather(128 * GB, RankGroup(128, 1), NODES)
    assert alone.seconds.value == pytest.approx(127 / (0.94 * 50), rel=0.01)


def test_an_all_to_all_sends_each_partner_its_piece_over_the_slower_wire() -> None:
    found = all_to_all(16 * GB, RankGroup(16, 8), NODES)
    assert found.sent.value == 15 * GB
    assert found.seconds.value == pytest.approx(8 / (0.94 * 50), rel=0.01)


def test_one_chip_is_sent_its_payload_once() -> None:
    inside = send(47 * GB, crosses_nodes=False, network=NODE)
    across = send(47 * GB, crosses_nodes=True, network=NODES)
    assert inside.sent.value == across.sent.value == 47 * GB
    assert across.seconds.value == pytest.approx(1.0, rel=1e-4)


def test_what_is_small_takes_the_protocol_with_the_least_latency() -> None:
    assert all_reduce(1024, RankGroup(8, 8), NODE).seconds.note.endswith("LL")
    assert all_reduce(GB, RankGroup(8, 8), NODE).seconds.note.endswith("simple")


def test_a_tree_has_fewer_steps_between_many_nodes() -> None:
    small = all_reduce(100_000, RankGroup(128, 1), NODES)
    assert "tree" in small.seconds.note
    # Seven levels up and down.
    terms = dict(small.seconds.terms)
    assert terms["steps_between"].value == 14


def test_levels_send_a_piece_of_the_payload_between_nodes() -> None:
    """With a slow network: in the node 7/8 twice, between nodes 2 * 127/128 of an eighth."""
    payload = 1024 * GB
    slow = network(faster(cluster("1024xH100-SXM"), 1.0))
    found = all_reduce(payload, RankGroup(1024, 8), slow)
    least = 2 * payload / 8 * 127 / 128 / (0.94 * 50 * GB)
    assert found.seconds.value >= least


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_rank_sends_nothing(collective: object) -> None:
    found = collective(GB, RankGroup(1, 1), NODE)  # type: ignore[operator]
    assert found.sent.value == found.seconds.value == 0


def test_groups_stand_as_close_as_their_strides_allow() -> None:
    assert group(8, 1, NODES) == RankGroup(8, 8)
    assert group(128, 8, NODES) == RankGroup(128, 1)
    assert group(256, 4, NODES) == RankGroup(256, 2)
    assert group(6, 2, NODES) == RankGroup(6, 3)
    assert group(2, 1024, NODES) == RankGroup(2, 1)


def test_a_link_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(UsageError, match="No source gives the speed"):
        network(cluster("2x2xRTX-4090"))


sizes = st.integers(0, 10**11)
ranks = st.sampled_from([(2, 2), (8, 8), (16, 8), (64, 8), (128, 1), (1024, 8)])


@given(sizes, sizes, ranks, st.sampled_from(COLLECTIVES))
def test_more_bytes_never_take_less_time(a: int, b: int, pair: tuple[int, int], it: object) -> None:
    few, many = sorted((a, b))
    there, back = (it(size, RankGroup(*pair), NODES) for size in (few, many))  # type: ignore[operator]
    assert there.seconds.value <= back.seconds.value
    assert there.sent.value <= back.sent.value + 1


@given(sizes, st.floats(1.0, 10.0), ranks, st.sampled_from(COLLECTIVES))
def test_a_faster_network_is_never_slower(
    size: int, times: float, pair: tuple[int, int], it: object
) -> None:
    fast = network(faster(cluster("1024xH100-SXM"), times))
    slow_s, fast_s = (
        it(size, RankGroup(*pair), each).seconds.value  # type: ignore[operator]
        for each in (NODES, fast)
    )
    assert fast_s <= slow_s * (1 + 1e-12)


@given(sizes, ranks)
def test_an_all_reduce_takes_no_longer_than_its_two_halves(
    size: int, pair: tuple[int, int]
) -> None:
    whole, scatter, gather = (
        collective(size, RankGroup(*pair), NODES).seconds.value
        for collective in (all_reduce, reduce_scatter, all_gather)
    )
    assert whole <= (scatter + gather) * 1.0001
    assert math.isfinite(whole)

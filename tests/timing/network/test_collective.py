"""Collectives: each constant's sum by hand, NCCL's choices, and laws."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.chips.clusters import cluster
from torchtally.errors import UsageError
from torchtally.timing.network import RankGroup, collective, least_sent_bytes
from torchtally.timing.network.collective import CollectiveKind

US, MIB, GIB = 1e-6, 1 << 20, 1 << 30
H100, A100, CARDS = cluster("1024xH100-SXM"), cluster("1024xA100-SXM"), cluster("1x8xRTX-4090")
KINDS: tuple[CollectiveKind, ...] = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather",
    "scatter",
)  # fmt: skip
NODE = RankGroup(8)


def test_a_ring_of_12_channels_of_30_gb_per_s() -> None:
    """18.1 us, 14 hops of 1.0 us, 14/8 of the payload at 360 GB/s, and 0.41 of a step to copy."""
    ring = collective("all_reduce", 8 * GIB, NODE, H100, algorithm="ring")
    moving_s = 14 / 8 * 8 * GIB / 360e9
    assert ring.seconds == pytest.approx((18.1 + 14) * US + moving_s * (1 + 0.41 / 14))
    assert ring.bus_bytes_per_s == pytest.approx(360e9 / (1 + 0.41 / 14), rel=0.01)
    assert ring.channels == 24  # "24 coll channels" in NCCL's log of a DGX H100


def test_gathers_go_round_once() -> None:
    for kind in ("all_gather", "reduce_scatter"):
        once = collective(kind, 8 * GIB, NODE, H100)
        assert once.seconds == pytest.approx((18.1 + 7) * US + (7 + 0.41) * GIB / 360e9)
        assert once.sent_bytes == 7 * GIB


def test_a_switch_that_adds_takes_large_all_reduces() -> None:
    """8 heads of 40 GB/s, 85 % of them, one less of them, both halves at once: 476 GB/s."""
    large = collective("all_reduce", 8 * GIB, NODE, H100)
    assert (large.way, large.channels) == ("NVLS", 16)
    assert large.bus_bytes_per_s == pytest.approx(8 * 40e9 * 0.85 * 7 / 8 * 2, rel=0.01)
    assert 460e9 < large.bus_bytes_per_s < 490e9
    assert collective("all_reduce", 8 * GIB, NODE, A100).way == "ring"


def test_what_is_small_takes_the_protocol_with_the_least_latency() -> None:
    small = collective("all_reduce", 8192, NODE, H100)
    assert (small.way, small.bound) == ("ring LL", "latency")
    assert small.latency_s == pytest.approx((5.1 + 14 * 0.81) * US)
    assert collective("all_reduce", GIB, NODE, H100).bound == "bandwidth"


def test_a_tree_is_up_and_down_a_chain_and_levels_between_nodes() -> None:
    """64 chips on 8 nodes: 7 hops and 3 levels, each twice."""
    tree = collective("all_reduce", 1024, RankGroup(64, 8), H100, algorithm="tree")
    assert tree.way == "tree LL"
    assert tree.latency_s == pytest.approx((6.8 + 2 * (7 * 0.6 + 3 * 5.0)) * US)
    assert collective("all_reduce", 1024, RankGroup(64, 8), H100).way == "tree LL"


def test_between_nodes_a_ring_has_a_card_for_each_chip() -> None:
    """A DGX H100 fits 8 rings of 45 GB/s into NVLink; a DGX A100 8 of 24 into its cards."""
    for where, wire in ((H100, 8 * 45e9), (A100, 8 * 24e9)):
        far = collective("all_gather", 1024 * GIB, RankGroup(1024, 128), where)
        assert far.sent_bytes / (far.seconds - far.latency_s) == pytest.approx(wire, rel=1e-3)
    alone = collective("all_gather", 1024 * GIB, RankGroup(128, 128), H100)
    assert alone.bus_bytes_per_s == pytest.approx(48e9, rel=0.01)


def test_the_steps_of_a_ring_over_nodes() -> None:
    """Two nodes: 28 hops of 3.4 us, 2 of 14; above a size 1.4 times as long."""
    steps_us = 8.4 + 28 * 3.4 + 2 * 14
    small, large = (
        collective("all_reduce", size, RankGroup(16, 2), H100, algorithm="ring").latency_s
        for size in (1, GIB)
    )
    assert small == pytest.approx((6.6 + 28 * 1.0 + 2 * 2.7) * US)  # LL: the host posts in 1 us
    assert large == pytest.approx(1.4 * steps_us * US)


def test_trees_of_switches_between_nodes() -> None:
    """Hopper: 45.5 GB/s a channel from three nodes on, 57.7 on two."""
    for nodes, each in ((2, 57.7e9), (16, 45.5e9)):
        ranks = 8 * nodes
        tree = collective("all_reduce", 64 * GIB, RankGroup(ranks, nodes), H100)
        assert tree.way == "NVLSTree"
        assert tree.latency_s == pytest.approx((25 + 2 * math.log2(nodes) * 20.9) * US)
        wire = tree.sent_bytes / (tree.seconds - tree.latency_s)
        assert wire == pytest.approx(8 * each, rel=1e-3)


def test_a_switch_fills_its_pipeline_first() -> None:
    """64 MiB are steps of 16 blocks, 8 heads and 64 KiB: one more than the payload has."""
    steps = 64 // 8
    moving_s = 64 * MIB / (8 * 40e9 * 0.85 * 7 / 8 * 2 * 8 / 14)
    switch = collective("all_reduce", 64 * MIB, NODE, H100)
    assert switch.seconds == pytest.approx(25e-6 + moving_s * (steps + 1) / steps)


def test_one_rank_a_node_gathers_by_parallel_trees() -> None:
    small = collective("all_gather", 64 * 1024, RankGroup(16, 16), H100)
    assert small.way == "PAT"
    assert small.latency_s == pytest.approx((8.0 + 16 * 2.8 + 4 * 14 / 3.5) * US)
    assert collective("all_gather", GIB, RankGroup(16, 16), H100).way == "ring"


def test_an_all_to_all_is_as_fast_as_its_slower_wire() -> None:
    """Within a node 0.86 of the link, and 0.41 of a part to copy one's own."""
    near = collective("all_to_all", 8 * GIB, NODE, H100)
    assert near.seconds - near.latency_s == pytest.approx((7 + 0.41) * GIB / (0.86 * 370.8e9))
    far = collective("all_to_all", 16 * GIB, RankGroup(16, 2), H100)
    assert far.seconds - far.latency_s == pytest.approx(8 * GIB / 48e9)
    assert near.latency_s == pytest.approx((11.5 + 7 * 0.2) * US)
    assert far.latency_s == pytest.approx((8.4 + 14 + 6 * 0.4 + 7 * 1.0) * US)


def test_kernels_that_store_into_others_memory_copy_nothing() -> None:
    """DeepEP's, by NCCL's table: 8.4 us and 3.4, and 0.4 for each partner after the first."""
    stored = collective("all_to_all", 8 * GIB, NODE, H100, is_staged=False)
    assert stored.seconds == pytest.approx((8.4 + 3.4 + 6 * 0.4) * US + 7 * GIB / 370.8e9)
    assert not stored.is_measured


def test_an_all_to_all_of_short_parts_takes_one_channel_each() -> None:
    """Up to 16 KiB for each partner: LL, 6.2 GB/s a channel."""
    short, longer = (
        collective("all_to_all", size, NODE, H100) for size in (1 << 17, (1 << 17) + 8)
    )
    assert (short.way, longer.way) == ("pairwise LL", "pairwise")
    assert short.latency_s == pytest.approx((5.1 + 0.81 + 6 * 0.4) * US)
    assert short.seconds - short.latency_s == pytest.approx((1 << 14) / 6.2e9)


def test_a_send() -> None:
    near, far = (collective("send", GIB, RankGroup(2, nodes), H100) for nodes in (1, 2))
    assert near.seconds == pytest.approx((11.5 + 0.2) * US + GIB / (0.86 * 370.8e9))
    assert far.seconds == pytest.approx((8.4 + 14) * US + GIB / 48e9)
    assert collective("send", 1024, RankGroup(2), H100).way == "pairwise LL"
    assert collective("send", 1024, RankGroup(2, 2), H100).way == "pairwise"


def test_a_barrier_is_a_small_all_reduce() -> None:
    barrier = collective("barrier", 0, NODE, H100)
    assert barrier.seconds == pytest.approx(collective("all_reduce", 1, NODE, H100).seconds)
    assert barrier.sent_bytes == 0


def test_boards_without_a_link_talk_over_pcie() -> None:
    """Four RTX 4090: PCIe 4 at 24 of 31.5 GB/s, of which more than two reach 0.55; hops of 5.7 us,
    half a step to copy, and no LL128.
    """
    two, ring = (collective("all_reduce", GIB, RankGroup(ranks), CARDS) for ranks in (2, 4))
    assert ring.seconds == pytest.approx((8.4 + 6 * 5.7) * US + 6.5 / 4 * GIB / (0.55 * 24e9))
    assert two.seconds == pytest.approx((8.4 + 2 * 5.7) * US + 2.5 / 2 * GIB / 24e9)
    sizes = [1 << power for power in range(30)]
    protocols = {collective("all_reduce", size, RankGroup(4), CARDS).protocol for size in sizes}
    assert protocols == {"LL", "simple"}


@pytest.mark.parametrize("kind", [*KINDS, "send", "barrier"])
def test_one_rank_takes_no_time(kind: CollectiveKind) -> None:
    alone = collective(kind, GIB, RankGroup(1), CARDS)
    assert (alone.seconds, alone.sent_bytes, alone.algorithm, alone.way) == (0.0, 0, None, "")
    assert alone.bus_bytes_per_s == 0.0


def test_what_is_not_there_is_an_error() -> None:
    with pytest.raises(UsageError, match="No NVLS for all_reduce of 8 A100-SXM"):
        collective("all_reduce", 1, NODE, A100, algorithm="NVLS")
    with pytest.raises(UsageError, match="no source gives it"):
        collective("all_reduce", 1, RankGroup(16, 2), cluster("2x8xRTX-4090"))


def test_groups_of_a_cluster() -> None:
    assert RankGroup.of_ranks(range(8, 24), 8) == RankGroup(16, 2)
    assert RankGroup.of_ranks((0, 8, 16), 8) == RankGroup(3, 3)
    assert RankGroup.of_ranks(range(4, 12), 8) == RankGroup(8, 2)
    assert RankGroup.with_stride(8, 1, 8) == RankGroup(8)
    assert RankGroup.with_stride(128, 8, 8) == RankGroup(128, 128)
    assert RankGroup.with_stride(256, 4, 8) == RankGroup(256, 128)
    assert RankGroup.with_stride(6, 2, 8) == RankGroup(6, 2)
    assert RankGroup.with_stride(2, 1024, 8) == RankGroup(2, 2)


def test_a_slower_network_adds_to_each_hop() -> None:
    """A network of 30 us: twice, since "simple" waits for a flush."""
    node = H100.chip.node
    assert node
    assert node.network
    far = replace(node, network=replace(node.network, latency_s=30e-6))
    slow = replace(H100, chip=replace(H100.chip, node=far))
    here, there = (
        collective("all_reduce", GIB, RankGroup(16, 2), where, algorithm="NVLSTree").seconds
        for where in (H100, slow)
    )
    assert there - here == pytest.approx(2 * 2 * 30e-6)


GROUPS = st.sampled_from(
    [(2, 1), (3, 1), (8, 1), (16, 2), (64, 8), (64, 32), (128, 128), (1024, 128), (9, 2)]
)
CLUSTERS = st.sampled_from(["H100-SXM", "A100-SXM", "B200", "GB200", "V100-SXM-32GB", "H200-SXM"])
SIZES = st.integers(0, 10**11)


@given(SIZES, SIZES, GROUPS, CLUSTERS, st.sampled_from(KINDS))
def test_more_bytes_never_take_less_time(
    a: int, b: int, spread: tuple[int, int], name: str, kind: CollectiveKind
) -> None:
    few, many = sorted((a, b))
    group, where = RankGroup(*spread), cluster(f"1024x{name}")
    less, more = (collective(kind, size, group, where) for size in (few, many))
    assert less.seconds <= more.seconds * (1 + 1e-12)
    assert less.sent_bytes <= more.sent_bytes


@given(st.integers(0, 40), GROUPS, CLUSTERS, st.sampled_from(KINDS))
def test_twice_the_bytes_take_at_most_twice_the_time(
    power: int, spread: tuple[int, int], name: str, kind: CollectiveKind
) -> None:
    """But for the plateau of rings over nodes, which lengthens their steps at one size; and within
    a node where NCCL goes from one protocol to the next, long before it is faster: on four GB200s
    an all-reduce of 4 MiB takes 36 us, one of 8 MiB 88 (`benchmarks/kernels/collectives.csv`).
    """
    group, where = RankGroup(*spread), cluster(f"1024x{name}")
    one, two = (collective(kind, times << power, group, where) for times in (1, 2))
    most = 2 if one.way == two.way else 3
    assert two.seconds <= most * one.seconds * (1 + 1e-12)


@given(SIZES, GROUPS, CLUSTERS, st.sampled_from(KINDS))
def test_parts_of_a_transfer_agree(
    size: int, spread: tuple[int, int], name: str, kind: CollectiveKind
) -> None:
    one = collective(kind, size, RankGroup(*spread), cluster(f"1024x{name}"))
    assert 0 < one.latency_s <= one.seconds < math.inf
    assert one.bus_bytes_per_s * one.seconds == pytest.approx(one.sent_bytes)
    assert one.sent_bytes == least_sent_bytes(kind, size, spread[0])
    assert 1 <= one.channels <= 64


@given(SIZES, GROUPS, CLUSTERS)
def test_no_bus_is_faster_than_its_wires(size: int, spread: tuple[int, int], name: str) -> None:
    """A ring's; a switch's own additions are worth up to twice the link."""
    where = cluster(f"1024x{name}")
    link = where.link_in_node.bytes_per_s_per_direction
    assert link
    for kind in ("all_gather", "reduce_scatter", "all_to_all"):
        assert collective(kind, size, RankGroup(*spread), where).bus_bytes_per_s <= link
    assert collective("all_reduce", size, RankGroup(*spread), where).bus_bytes_per_s <= 2 * link

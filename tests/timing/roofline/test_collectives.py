"""Collectives as kernels: which operator is which collective, and for whom it is timed."""

import pytest

from tests.timing.roofline.chips import kernel_of, toy
from tests.work.calls import call, given
from torchtally.chips import Link, chip
from torchtally.chips.clusters import cluster
from torchtally.timing.network import RankGroup, collective
from torchtally.timing.roofline.collectives import Communicators, kind_of, ranks_of
from torchtally.timing.roofline.kernel import Bound
from torchtally.trace import Call, Literal, ProcessGroup, World
from torchtally.work import Kind
from torchtally.work.rule import RULES

N = 25 * 10**6
H100 = chip("H100-SXM")


def named(name: str, **literals: Literal) -> Call:
    return call(f"_c10d_functional.{name}", [given("input", N)], (N,), **literals)


def test_a_collective_takes_what_the_network_model_says() -> None:
    kernel = kernel_of(named("all_reduce", group_size=4), H100)
    expected = collective("all_reduce", 4 * N, RankGroup(4), cluster("4xH100-SXM"))
    assert kernel.seconds == expected.seconds
    assert kernel.bound is Bound.NETWORK


def test_without_a_number_of_ranks_a_full_node_is_taken() -> None:
    assert ranks_of(named("all_reduce"), H100)[0] == RankGroup(8)
    assert ranks_of(named("all_reduce", group_size=32), H100)[0] == RankGroup(32, 4)
    assert ranks_of(named("all_reduce"), toy())[0] == RankGroup(2)


def test_every_operator_is_a_collective() -> None:
    communication = [name for name, rule in RULES.items() if rule.kind is Kind.COMMUNICATION]
    assert len(communication) > 30
    kinds = {name: kind_of(name) for name in communication}
    assert {name for name, kind in kinds.items() if kind is None} == {
        "c10d.check_for_nan",
        "c10d.monitored_barrier_",
    }
    assert kinds["c10d._allgather_base_"] == "all_gather"
    assert kinds["c10d.reduce_scatter_tensor_coalesced_"] == "reduce_scatter"
    assert kinds["_dtensor.shard_dim_alltoall"] == "all_to_all"
    assert kinds["c10d.gather_"] == "gather"


def test_a_barrier_takes_as_long_as_a_small_all_reduce() -> None:
    barrier = collective("barrier", 0, RankGroup(8), cluster("8xH100-SXM"))
    assert kernel_of(call("c10d.barrier", []), H100).seconds == barrier.seconds
    assert kernel_of(call("c10d.monitored_barrier_", []), H100).seconds == 0.0


def test_an_unknown_link_is_an_error_not_a_guess() -> None:
    with pytest.raises(Exception, match="no source gives it"):
        kernel_of(named("all_reduce"), toy(link=Link("mystery"), host_link=None))


def exchanged(sent: tuple[int, ...], got: tuple[int, ...], world: World) -> float:
    """Seconds of an all-to-all of N rows by the first of the ranks."""
    ranks = tuple(range(len(sent)))
    parts = {"input_split_sizes": sent, "output_split_sizes": got, "group": 0}
    exchange = named("all_to_all_single", **parts)
    communicators = Communicators(world, (ProcessGroup("0", "", ranks),))
    transfer = communicators.transfer(exchange, 4 * N, H100)
    assert transfer is not None
    return transfer.seconds


NODE = World(size=4, rank=0, gpus_per_node=8)
QUARTER = N // 4


def test_an_exchange_of_equal_parts_is_an_all_to_all() -> None:
    even = collective("all_to_all", 4 * N, RankGroup(4), cluster("4xH100-SXM"))
    assert exchanged(4 * (QUARTER,), 4 * (QUARTER,), NODE) == even.seconds


def test_a_turn_of_a_ring_is_a_send() -> None:
    """All to one neighbour; over the network where that is on another node."""
    near = collective("send", 4 * N, RankGroup(2), cluster("4xH100-SXM"))
    assert exchanged((0, N, 0, 0), (0, 0, 0, N), NODE) == near.seconds
    far = collective("send", 4 * N, RankGroup(2, 2), cluster("2x2xH100-SXM"))
    two_nodes = World(size=4, rank=0, gpus_per_node=2)
    assert exchanged((0, 0, N, 0), (0, 0, N, 0), two_nodes) == far.seconds


def test_the_busier_way_of_an_uneven_exchange_counts() -> None:
    """Half of what it has is its own; it gets three quarters from others."""
    even = collective("all_to_all", 4 * N, RankGroup(4), cluster("4xH100-SXM"))
    sent, got = (2 * QUARTER, QUARTER, QUARTER, 0), 4 * (QUARTER,)
    assert exchanged(sent, got, NODE) == pytest.approx(even.seconds)
    little = exchanged(sent, sent, NODE)
    assert little == pytest.approx(even.seconds * 2 / 3, rel=0.05)


def test_what_stays_with_its_rank_takes_next_to_no_time() -> None:
    assert exchanged((N, 0, 0, 0), (N, 0, 0, 0), NODE) < 20e-6

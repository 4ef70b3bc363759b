"""Collectives as kernels: which operator is which collective, and for whom it is timed."""

import pytest

from tests.timing.roofline.chips import kernel_of, toy
from tests.work.calls import call, given
from torchtally.chips import Link, chip
from torchtally.chips.clusters import cluster
from torchtally.timing.network import RankGroup, collective
from torchtally.timing.roofline.collectives import kind_of, ranks_of
from torchtally.timing.roofline.kernel import Bound
from torchtally.trace import Call, Literal
from torchtally.work import Kind
from torchtally.work.rule import RULES

N = 25 * 10**6
H100 = chip("H100-SXM")


def named(name: str, **literals: Literal) -> Call:
    return call(f"_c10d_functional.{name}", [given("input", N)], (N,), **literals)


def test_a_collective_takes_what_the_network_model_says() -> None:
    found = kernel_of(named("all_reduce", group_size=4), H100)
    expected = collective("all_reduce", 4 * N, RankGroup(4), cluster("4xH100-SXM"))
    assert found.seconds == expected.seconds
    assert found.bound is Bound.NETWORK


def test_without_a_number_of_ranks_a_full_node_is_taken() -> None:
    assert ranks_of(named("all_reduce"), H100)[0] == RankGroup(8)
    assert ranks_of(named("all_reduce", group_size=32), H100)[0] == RankGroup(32, 4)
    assert ranks_of(named("all_reduce"), toy())[0] == RankGroup(2)


def test_every_operator_is_a_collective() -> None:
    communication = [name for name, found in RULES.items() if found.kind is Kind.COMMUNICATION]
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
    with pytest.raises(Exception, match="No source gives the speed"):
        kernel_of(named("all_reduce"), toy(link=Link("mystery"), host_link=None))

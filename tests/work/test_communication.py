"""Communication: the payload crosses the network, both sides touch memory."""

import pytest

from tests.work.calls import call, cost, given
from torchtally.trace import Call
from torchtally.work import Cost, Kind, cost_of

BIG, SHARD = (8, 4), (2, 4)  # 128 and 32 bytes
COLLECTIVES = [
    (call("c10d.allreduce_", [given("tensors", *BIG)], BIG), Cost(0, 128, 128, 128)),
    (
        call(
            "c10d._allgather_base_",
            [given("output_tensor", *BIG), given("input_tensor", *SHARD)],
            BIG,
        ),
        Cost(0, 32, 128, 128),
    ),
    (
        call(
            "c10d._reduce_scatter_base_",
            [given("output_tensor", *SHARD), given("input_tensor", *BIG)],
            SHARD,
        ),
        Cost(0, 128, 32, 128),
    ),
    (
        call("c10d.alltoall_base_", [given("output", *BIG), given("input", *BIG)]),
        Cost(0, 128, 128, 128),
    ),
    (call("c10d.broadcast_", [given("tensors", *BIG)], BIG), Cost(0, 128, 128, 128)),
    (call("c10d.send", [given("tensors", *BIG)]), Cost(0, 128, 0, 128)),
    (call("c10d.recv_", [given("tensors", *BIG)]), Cost(0, 0, 128, 128)),
    (call("c10d.barrier", [given("tensor", 1)]), Cost()),
    (
        call("_c10d_functional.all_gather_into_tensor", [given("input", *SHARD)], BIG),
        Cost(0, 32, 128, 128),
    ),
    (
        call("_c10d_functional.reduce_scatter_tensor", [given("input", *BIG)], SHARD),
        Cost(0, 128, 32, 128),
    ),
    (
        call("_c10d_functional.all_reduce_", [given("input", *BIG, written=True)]),
        Cost(0, 128, 128, 128),
    ),
    (
        call(
            "_c10d_functional.batch_p2p_ops",
            [given("tensors", *BIG), given("tensors", *SHARD)],
            op_list=("isend", "irecv"),
        ),
        Cost(0, 128, 32, 160),
    ),
]


@pytest.mark.parametrize(("one", "expected"), COLLECTIVES)
def test_collective(one: Call, expected: Cost) -> None:
    assert cost_of(one) == (Kind.COMMUNICATION, expected)


def test_a_collective_that_returns_its_input_is_no_view() -> None:
    tensor = given("tensors", *BIG)
    one = Call("c10d.allreduce_", "default", (tensor,), (tensor,))
    assert one.is_view
    assert cost_of(one)[1].network_bytes == 128


def test_an_out_form_reads_one_side_and_writes_the_other() -> None:
    out = [given("input", *SHARD), given("out", *BIG, written=True)]
    one = call("_c10d_functional.all_gather_into_tensor_out", out)
    assert cost_of(one) == (Kind.COMMUNICATION, Cost(0, 32, 128, 128))


def test_waiting_is_free() -> None:
    tensor = given("tensor", *BIG)
    assert cost_of(Call("_c10d_functional.wait_tensor", "", (tensor,), (tensor,)))[0].is_free


def test_sharded_parameters_are_copied_in_and_out() -> None:
    shards = [given("all_gather_inputs", *SHARD), given("all_gather_output", *BIG)]
    assert cost(call("fsdp.all_gather_copy_in", shards, SHARD, BIG)) == Cost(0, 32, 32)
    out = [given("all_gather_output", *BIG), given("out", *BIG, written=True)]
    assert cost(call("fsdp.split_with_sizes_copy", out)) == Cost(0, 128, 128)
    assert cost(call("fsdp.copy_", [given("tensor", *BIG, written=True), given("data", *BIG)])) == (
        Cost(0, 128, 128)
    )

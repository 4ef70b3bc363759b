"""Memory of other ranks, read and written over links: held to what torch's functions do there."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _symmetric_memory as symmetric

import torchtally
from tests.virtual.distributed.test_forms import RANKS, collectives, run
from torchtally.trace import Ending, Trace, World
from torchtally.tracer.session import recording
from torchtally.views.collectives import network_time
from torchtally.views.flight_record import flight_record
from torchtally.work import cost_of

TOKENS, WIDTH, INNER = 4096, 4096, 8192
"""Of a rank; products long enough to hide what is gathered."""


def whole_group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def multiplied() -> tuple[Tensor, Tensor]:
    """Shards gathered and multiplied, multiplied again and reduced."""
    name = whole_group().group_name
    x = torch.randn(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(WIDTH, INNER, device="cuda", dtype=torch.bfloat16)
    rows, (y,) = torch.ops.symm_mem.fused_all_gather_matmul(x, [weight], 0, name)
    z = torch.ops.symm_mem.fused_matmul_reduce_scatter(y, weight.T.contiguous(), "sum", 0, name)
    assert (rows.shape, y.shape) == ((RANKS * TOKENS, WIDTH), (RANKS * TOKENS, INNER))
    return rows, z


def products(trace: Trace) -> Counter[tuple[int, ...]]:
    calls = (trace.calls[op.call] for op in trace.ops)
    return Counter(call.outputs[0].shape for call in calls if call.name == "aten.mm")


def test_asynchronous_tensor_parallelism_copies_shards_while_it_multiplies() -> None:
    """Of 4 ranks: 3 shards gathered, 3 partial products fetched, 4 and 4 products of their rows;
    barriers around all, and of the reduction around each copy.
    """

    def script() -> None:
        assert multiplied()[1].shape == (TOKENS, WIDTH)

    trace = run(script)
    shard_bytes = 2 * TOKENS * WIDTH
    counts = collectives(trace)
    assert counts.pop(("get", 2 * shard_bytes)) == (RANKS - 1) + (RANKS - 1)
    assert {name for name, _ in counts} == {"barrier"}
    assert counts.total() == 3 + (2 + 2 * (RANKS - 1))
    ledger = torchtally.account(trace)
    assert ledger.total.flops_matmul == 2 * (2 * RANKS * TOKENS * WIDTH * INNER)
    assert ledger.total.network_bytes == 2 * (RANKS - 1) * shard_bytes
    priced = torchtally.account(trace, roofline=torchtally.roofline("H100-SXM"))
    network = network_time(priced)
    assert network is not None
    assert network.hidden_share > 0.5
    assert network.exposed_s < network.busy_s


def test_products_on_two_streams_take_as_long_as_on_one() -> None:
    """A GPU does not multiply twice as fast: two streams have but one device."""

    def script(streams: int) -> None:
        x = torch.randn(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
        others = [torch.cuda.Stream() for _ in range(streams)]
        for place in range(8):
            with torch.cuda.stream(others[place % streams]):
                x @ x.T
        torch.cuda.synchronize()
        dist.barrier()

    def seconds(streams: int) -> float:
        trace = run(lambda: script(streams))
        roofline = torchtally.roofline("H100-SXM")
        return torchtally.account(trace, roofline=roofline).total.seconds

    assert seconds(2) == pytest.approx(seconds(1), rel=0.02)


def test_a_script_reads_and_writes_its_neighbours_memory() -> None:
    def script() -> None:
        group = whole_group()
        tensor = symmetric.empty(1024, 1024, device="cuda")
        handle = symmetric.rendezvous(tensor, group)
        assert (handle.rank, handle.world_size, handle.buffer_size) == (0, RANKS, 2**22)
        assert symmetric.rendezvous(tensor, group.group_name) is handle
        right = handle.get_buffer(1, (512, 1024), torch.float32, 512 * 1024)
        own = handle.get_buffer(0, (1024, 1024), torch.float32)
        assert own.data_ptr() == tensor.data_ptr()
        handle.barrier()
        right.copy_(tensor[:512])
        tensor[512:].copy_(right)
        handle.put_signal(1)
        handle.wait_signal(3)
        assert symmetric.rendezvous(torch.empty(4, device="cuda"), group) is None

    trace = run(script)
    half_bytes, pair = 2**21, 2
    assert collectives(trace) == {
        ("barrier", 2**22): 1,
        ("put", pair * half_bytes): 1,
        ("get", pair * half_bytes): 1,
        ("put_signal", 2**22): 1,
        ("wait_signal", 2**22): 1,
    }


def test_kernels_over_symmetric_memory_are_collectives() -> None:
    def script() -> None:
        name = whole_group().group_name
        kernels = torch.ops.symm_mem
        tensor = symmetric.empty(256, 256, device="cuda", dtype=torch.bfloat16)
        whole = torch.empty(RANKS * 256, 256, device="cuda", dtype=torch.bfloat16)
        assert kernels.one_shot_all_reduce(tensor, "sum", name).shape == tensor.shape
        assert kernels.two_shot_all_reduce_(tensor, "sum", name) is tensor
        assert kernels.multimem_all_reduce_(tensor, "sum", name) is tensor
        assert kernels.multimem_all_gather_out(tensor, name, whole) is whole
        gathered = kernels._low_contention_all_gather(tensor, name)
        assert torch.ops._c10d_functional.wait_tensor(gathered).shape == whole.shape
        reduced = kernels._low_contention_reduce_scatter(whole, "sum", name)
        assert torch.ops._c10d_functional.wait_tensor(reduced).shape == tensor.shape

    counts = collectives(run(script))
    size = 2 * 256 * 256
    assert counts["one_shot_all_reduce", size] == 1
    assert counts["two_shot_all_reduce_", size] == 1
    assert counts["multimem_all_reduce_", size] == 1
    assert counts["multimem_all_gather_out", (1 + RANKS) * size] == 1
    assert counts["get", 2 * size] == RANKS - 1
    assert counts["put", 2 * size] == RANKS - 1


def test_memory_of_another_node_is_out_of_reach() -> None:
    def script() -> None:
        dist.init_process_group("nccl")
        tensor = symmetric.empty(16, device="cuda")
        symmetric.rendezvous(tensor, whole_group())

    with pytest.raises(RuntimeError, match=r"joins GPUs of one node; the group .* is on 2"):
        torchtally.run(script, gpu="2x8xH100-SXM", writes="private")


def test_a_kernel_of_the_scripts_own_on_other_ranks_memory_is_said() -> None:
    def script() -> None:
        handle = symmetric.rendezvous(symmetric.empty(16, device="cuda"), whole_group())
        handle.get_buffer(1, (16,), torch.float32).mul(2)

    assert any("memory of other ranks" in note.text for note in run(script).notes)


def test_the_flight_recorder_knows_nccls_collectives_alone() -> None:
    def script() -> None:
        handle = symmetric.rendezvous(symmetric.empty(16, device="cuda"), whole_group())
        handle.barrier()
        dist.all_reduce(torch.ones(4, device="cuda"))

    ledger = torchtally.account(run(script), roofline=torchtally.roofline("H100-SXM"))
    names = [entry["profiling_name"] for entry in flight_record(ledger)["entries"]]
    assert names == ["nccl:all_reduce"]


def exchanged(what_ifs: tuple[str, ...]) -> tuple[Trace, list[list[int]], list[list[int]]]:
    """65,536 tokens of 16 numbers, each for one of 8 experts, two on each of 4 ranks, and back.

    (the run, numbers and offsets of rows that came, the same on the way back)
    """
    came: list[list[list[int]]] = []

    def script() -> None:
        name = whole_group().group_name
        kernels = torch.ops.symm_mem
        experts = torch.randn(2**16, 8, device="cuda").topk(1, -1).indices.flatten()
        counts = experts.bincount(minlength=8)
        tokens = symmetric.empty(2**16, 16, device="cuda")
        room = symmetric.empty(2**18, 16, device="cuda")
        there, back = (torch.empty(2, 8, device="cuda", dtype=torch.int64) for _ in range(2))
        kernels.all_to_all_vdev_2d(tokens, room, counts, there, name, major_align=16)
        kernels.all_to_all_vdev_2d_offset(room, tokens, there, back, name)
        came.extend([there.tolist(), back.tolist()])

    world = World(size=RANKS, rank=0, gpus_per_node=RANKS)
    with recording("H100-SXM", script="", what_ifs=what_ifs, world=world) as recorder:
        dist.init_process_group("nccl")
        script()
    return recorder.trace(Ending("exit")), came[0], came[1]


def test_tokens_go_to_experts_and_come_back() -> None:
    """2**13 for each expert: first those of one from each rank, then those of the other."""
    trace, there, back = exchanged(())
    assert there == [[2**13] * 8, [place * 2**13 for place in range(8)]]
    assert back == there
    calls = [call for call in trace.calls if call.name.startswith("symm_mem.all_to_all")]
    assert [cost_of(call)[1].network_bytes for call in calls] == [2**16 * 64] * 2


def test_the_busiest_rank_gets_more_tokens_and_gives_them_back() -> None:
    """At twice the mean experts get 2, 12/7, 10/7, ...: of every rank the first two are here, and
    lines begin on multiples of 16.
    """
    trace, there, back = exchanged(("imbalance=2",))
    first, second = there[0][0], there[0][4]
    assert there[0] == [first] * RANKS + [second] * RANKS
    assert first == pytest.approx(2 * 2**13, rel=1e-3)
    assert second == pytest.approx(12 / 7 * 2**13, rel=1e-3)
    assert there[1][:2] == [0, first]
    assert there[1][4] == -(-RANKS * first // 16) * 16
    assert sum(back[0]) == 2**16
    calls = [call for call in trace.calls if call.name.startswith("symm_mem.all_to_all")]
    received_bytes = RANKS * (first + second) * 64
    assert [cost_of(call)[1].network_bytes for call in calls] == [received_bytes] * 2
    assert [cost_of(call)[1].bytes_read for call in calls] == [2**16 * 64, received_bytes]

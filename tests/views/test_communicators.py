"""What NCCL takes for the communicators that a run uses."""

import pytest
import torch
import torch.distributed as dist

import torchtally
from torchtally.chips.clusters import cluster
from torchtally.ledger import Ledger
from torchtally.timing.network import RankGroup, buffer_bytes, collective
from torchtally.views.communicators import communicator_buffers
from torchtally.views.summary import judge

NODE = cluster("8xH100-SXM")
MIB = 2**20


def step() -> None:
    """All ranks in two ways, two of them, a group that nothing runs in, and a message."""
    dist.init_process_group("nccl")
    pair, _ = dist.new_group([0, 1]), dist.new_group([0, 1, 2, 3])
    gradients = torch.empty(256 * MIB, device="cuda")
    dist.all_reduce(gradients)
    dist.all_reduce(gradients[:1024])
    dist.all_reduce(gradients[:1024], group=pair)
    for _ in range(3):
        dist.send(gradients[:1024], 5)


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    return torchtally.account(torchtally.run(step, gpu="8xH100-SXM"))


def test_each_communicator_has_the_buffers_of_what_ran_in_it(ledger: Ledger) -> None:
    def way(payload_bytes: int, ranks: int) -> str | None:
        return collective("all_reduce", payload_bytes, RankGroup(ranks), NODE).algorithm

    large, small, two = way(1024 * MIB, 8), way(4096, 8), way(4096, 2)
    assert large
    assert small
    assert two
    assert large != small, "the case needs two ways"
    buffers = communicator_buffers(ledger, NODE.chip)
    assert buffers.communicators == 3
    assert buffers.bytes == (
        buffer_bytes([large, small], RankGroup(8), NODE)
        + buffer_bytes([two], RankGroup(2), NODE)
        + buffer_bytes(["pairwise"], RankGroup(2), NODE)
    )


def test_they_count_where_a_run_hardly_fits() -> None:
    """A tensor that leaves 200 MiB of the chip: enough alone, too little beside a communicator."""

    def full(*, sends: bool) -> bool | None:
        def train() -> None:
            dist.init_process_group("nccl")
            free, _ = torch.cuda.mem_get_info()
            held = torch.empty(free - 200 * MIB, dtype=torch.uint8, device="cuda")
            if sends:
                dist.all_reduce(held[: 64 * MIB])

        return judge(torchtally.account(torchtally.run(train, gpu="8xH100-SXM"))).fits

    assert full(sends=False)
    assert not full(sends=True)


def test_one_gpu_has_none() -> None:
    alone = torchtally.account(
        torchtally.run(lambda: torch.ones(4, device="cuda").add_(1), gpu="H100-SXM")
    )
    assert communicator_buffers(alone, NODE.chip).bytes == 0

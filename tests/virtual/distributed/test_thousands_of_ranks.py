"""What a run costs does not grow with the number of ranks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import torchtally
from torchtally import torch_private as private
from torchtally.trace import Trace
from torchtally.virtual.distributed.chunks import Chunks

WIDTH = 48
"""Fewer rows than the larger cluster has ranks: most ranks have none."""


def shard(model: nn.Sequential) -> nn.Module:
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    return model


def train(parallel: Callable[[nn.Sequential], nn.Module]) -> None:
    dist.init_process_group("nccl")
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).cuda()
    model = parallel(layers)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.ones(4, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def traced(parallel: Callable[[nn.Sequential], nn.Module], gpus: str) -> Trace:
    return torchtally.run(lambda: train(parallel), gpu=gpus)


def test_8192_ranks_run_the_operators_of_8() -> None:
    """FSDP would cut each parameter into a tensor for each rank."""
    few, many = traced(shard, "8xH100-SXM"), traced(shard, "1024x8xH100-SXM")
    assert abs(len(many.ops) - len(few.ops)) <= 4
    assert len(many.storages) <= len(few.storages)
    assert max(len(call.outputs) for call in many.calls) < 16


def sent_at_start(trace: Trace) -> list[tuple[str, int]]:
    """Of DDP's look at its parameters: each collective, and the bytes of its longest tensor."""
    calls = [trace.calls[op.call] for op in trace.ops]
    collectives = [call for call in calls if call.name.startswith("c10d.")]
    return [(call.name, max(spec.bytes for spec in call.inputs)) for call in collectives[:2]]


def test_8192_ranks_look_at_ddps_parameters_as_8_do() -> None:
    """A number of each rank, then eight of the first: (48, 48), (48,) twice, and their strides."""
    few, many = (
        traced(DistributedDataParallel, "8xH100-SXM"),
        traced(DistributedDataParallel, "1024x8xH100-SXM"),
    )
    assert abs(len(many.ops) - len(few.ops)) <= 24
    assert sent_at_start(few) == [("c10d.allgather_", 8), ("c10d.broadcast_", 96)]
    assert sent_at_start(many) == [("c10d._allgather_base_", 8192 * 8), ("c10d.broadcast_", 96)]
    assert len(many.storages) <= len(few.storages)


def test_8192_ranks_tell_each_other_objects() -> None:
    given = {"of": ["each", "rank"]}
    got: list[Any] = [None] * 8192

    def script() -> None:
        dist.init_process_group("nccl")
        dist.all_gather_object(got, given)

    trace = torchtally.run(script, gpu="1024x8xH100-SXM")
    assert got == [given] * 8192
    assert got[0] is not got[1]
    assert len(trace.ops) < 16


def listed(tensor: Tensor, count: int, dim: int) -> list[Tensor]:
    """torch's, while no GPU is simulated."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    chunks: list[Tensor] = getattr(_fsdp_param, private.CHUNK)(tensor, count, dim)
    return chunks


@pytest.mark.parametrize(("rows", "count"), [(8, 4), (7, 4), (9, 8), (3, 8), (1, 1), (5, 3)])
@pytest.mark.parametrize("dim", [0, 1])
def test_chunks_are_torchs(rows: int, count: int, dim: int) -> None:
    tensor = torch.arange(rows * rows * 2.0).view(rows, rows, 2)
    ours, theirs = Chunks(tensor, count, dim), listed(tensor, count, dim)
    assert len(ours) == len(theirs) == count
    assert [each.shape for each in ours] == [each.shape for each in theirs]
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))
    assert [each.shape for each in ours[1:]] == [each.shape for each in theirs[1:]]
    with pytest.raises(IndexError):
        ours[count]

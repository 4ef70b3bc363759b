"""What a run costs does not grow with the number of ranks."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import torchtally
from torchtally import torch_private as private
from torchtally.trace import Trace
from torchtally.virtual.distributed.chunks import Chunks

WIDTH = 48
"""Fewer rows than the larger cluster has ranks: most ranks have none."""


def train() -> None:
    dist.init_process_group("nccl")
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).cuda()
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.ones(4, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def traced(gpus: str) -> Trace:
    return torchtally.run(train, gpu=gpus)


def test_8192_ranks_run_the_operators_of_8() -> None:
    """FSDP would cut each parameter into a tensor for each rank."""
    few, many = traced("8xH100-SXM"), traced("1024x8xH100-SXM")
    assert abs(len(many.ops) - len(few.ops)) <= 4
    assert len(many.storages) <= len(few.storages)
    assert max(len(call.outputs) for call in many.calls) < 16


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

"""Small distributed trainings, as functions of the device type: run for real, and simulated."""

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH, STEPS = 32, 4, 2

Program = Callable[[str], None]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.up(self.norm(x)))
        down: Tensor = self.down(hidden)
        return x + down


def blocks() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(3)))


def train(model: nn.Module, device: str, sequence: int = 8) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(STEPS):
        model(torch.ones(BATCH, sequence, WIDTH, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def mesh_of(device: str, *shape: int, names: tuple[str, ...]) -> DeviceMesh:
    return init_device_mesh(device, shape, mesh_dim_names=names)


def ddp(device: str) -> None:
    train(DistributedDataParallel(blocks().to(device), bucket_cap_mb=0.02), device)


def fsdp(device: str) -> None:
    model, mesh = blocks().to(device), mesh_of(device, dist.get_world_size(), names=("dp",))
    for block in model:
        fully_shard(block, mesh=mesh)
    train(fully_shard(model, mesh=mesh), device)


def hsdp(device: str) -> None:
    model = blocks().to(device)
    mesh = mesh_of(device, 2, dist.get_world_size() // 2, names=("replicate", "shard"))
    for block in model:
        fully_shard(block, mesh=mesh)
    train(fully_shard(model, mesh=mesh), device)


def sequence_parallel(device: str) -> None:
    """Tensor parallelism whose norms work on a part of the sequence."""
    size = dist.get_world_size()
    model, mesh = blocks().to(device), mesh_of(device, size, names=("tp",))
    for block in model:
        parallelize_module(block, mesh, {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        })  # fmt: skip
    train(model, device, sequence=8 // size)


def zero(device: str) -> None:
    """Optimizer state in parts: each rank steps its own, and sends them to the others."""
    model = DistributedDataParallel(blocks().to(device))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    for _ in range(STEPS):
        model(torch.ones(BATCH, 8, WIDTH, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def primitives(device: str) -> None:
    """Every collective on tensors, once; the objects of Python, too."""
    size, rank = dist.get_world_size(), dist.get_rank()
    x = torch.ones(4 * size, device=device)
    dist.all_reduce(x)
    dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True).wait()
    dist.broadcast(x, 0)
    dist.reduce(x, 0)
    dist.all_gather([torch.empty_like(x) for _ in range(size)], x)
    dist.all_gather_into_tensor(torch.empty(4 * size * size, device=device), x)
    dist.reduce_scatter_tensor(torch.empty(4, device=device), x)
    dist.all_to_all_single(torch.empty_like(x), x)
    dist.gather(x, [torch.empty_like(x) for _ in range(size)] if rank == 0 else None)
    dist.scatter(x[:4], [x[:4].clone() for _ in range(size)] if rank == 0 else None)
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, {"same": "everywhere"})
    assert objects == [{"same": "everywhere"}] * size
    dist.broadcast_object_list(objects, 0)
    group = dist.new_group([0, 1])
    dist.all_reduce(x, group=group)
    dist.barrier()


PROGRAMS: dict[str, Program] = {
    program.__name__: program for program in (ddp, fsdp, hsdp, sequence_parallel, zero, primitives)
}


def main(device: str, program: Program) -> None:
    """As a script would: a process group, then the program."""
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    program(device)
    dist.destroy_process_group()

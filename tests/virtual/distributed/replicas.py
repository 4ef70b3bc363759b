"""Trainings on replicas: the ways of DistributedDataParallel and of what comes with it."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from tests.virtual.distributed.programs import BATCH, STEPS, WIDTH, Program, blocks, mesh_of, train

KIB_20 = 20 / 1024
"""A bucket's size in MiB: a block has 17 KiB."""


def replica(device: str, model: nn.Module | None = None, **options: Any) -> Any:
    model = blocks() if model is None else model
    return DistributedDataParallel(model.to(device), bucket_cap_mb=KIB_20, **options)


def batch(device: str) -> Tensor:
    return torch.ones(BATCH, 8, WIDTH, device=device)


def ddp_static_graph(device: str) -> None:
    train(replica(device, static_graph=True), device)


def ddp_views(device: str) -> None:
    train(replica(device, gradient_as_bucket_view=True), device)


def ddp_unused(device: str) -> None:
    """One layer has no part in the loss."""

    class WithUnused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = blocks(), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.used(x)
            return y

    train(replica(device, WithUnused(), find_unused_parameters=True), device)


def ddp_buffers(device: str) -> None:
    """Running statistics are sent around before each step."""
    train(replica(device, nn.Sequential(blocks(), nn.BatchNorm1d(8))), device)


def ddp_no_sync(device: str) -> None:
    model = replica(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        with model.no_sync():
            model(batch(device)).sum().backward()
        model(batch(device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def hooked(register: Callable[[Any], None]) -> Program:
    def program(device: str) -> None:
        model = replica(device)
        register(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(batch(device)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return program


def all_reduce_then_divide(model: Any) -> None:
    def hook(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / dist.get_world_size())

    model.register_comm_hook(None, hook)


def built_in_hook(model: Any) -> None:
    model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)


def ddp_join(device: str) -> None:
    """With an optimizer whose state is in parts; all ranks have as many batches."""
    model = replica(device)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True
    )
    with Join([model, optimizer]):
        for _ in range(STEPS):
            model(batch(device)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def loss_parallel_head(device: str) -> None:
    """Logits in parts of the vocabulary, and the loss over them."""
    size = dist.get_world_size()
    mesh = mesh_of(device, size, names=("tp",))
    model = nn.Sequential(nn.Embedding(16, WIDTH), nn.Linear(WIDTH, 16)).to(device)
    head = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    model = parallelize_module(
        model, mesh, {"0": RowwiseParallel(input_layouts=Replicate()), "1": head}
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.arange(16, device=device)
    for _ in range(STEPS):
        with loss_parallel():
            nn.functional.cross_entropy(model(tokens), tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


REPLICAS: dict[str, Program] = {
    "ddp_static_graph": ddp_static_graph,
    "ddp_views": ddp_views,
    "ddp_unused": ddp_unused,
    "ddp_buffers": ddp_buffers,
    "ddp_no_sync": ddp_no_sync,
    "ddp_fp16": hooked(
        lambda model: model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    ),
    "ddp_own_hook": hooked(all_reduce_then_divide),
    "ddp_built_in_hook": hooked(built_in_hook),
    "ddp_join": ddp_join,
    "loss_parallel": loss_parallel_head,
}

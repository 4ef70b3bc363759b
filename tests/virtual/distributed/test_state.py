"""What each rank holds of parameters, gradients and optimizer state, by closed forms, to the byte.

R: ranks. The width does not divide by them: the first ranks hold more, or all are padded.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import torchtally
from torchtally.trace import Role, Trace

pytestmark = pytest.mark.one_case_in(8)

WIDTH, HIDDEN, BLOCKS, R = 30, 60, 3, 4
FP32, MOMENTS = 4, 2
SHAPES = [(WIDTH,), (WIDTH,), (HIDDEN, WIDTH), (HIDDEN,), (WIDTH, HIDDEN), (WIDTH,)]
"""Of a block: its norm, up, down."""
ELEMENTS = sum(map(prod, SHAPES))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down(torch.relu(self.up(self.norm(x))))
        return x + down


def blocks(count: int = BLOCKS) -> nn.Sequential:
    return nn.Sequential(*(Block() for _ in range(count))).cuda()


@dataclass(frozen=True)
class Held:
    """Elements of float32; the moments of AdamW are those of two."""

    parameters: int
    gradients: int
    moments: int


def held(trace: Trace) -> Held:
    """At the end of the last step, before its gradients go."""
    tick = trace.step_ends[-1] - 1

    def elements(role: Role) -> int:
        sizes = [
            storage.requested_bytes
            for storage in trace.storages
            if storage.role is role
            and storage.born <= tick
            and (storage.died is None or storage.died > tick)
        ]
        return sum(sizes) // FP32

    return Held(
        elements(Role.PARAMETER), elements(Role.GRADIENT), elements(Role.OPTIMIZER_STATE) // MOMENTS
    )


def train(model: nn.Module, make: Callable[..., Any] = torch.optim.AdamW) -> None:
    optimizer = make(model.parameters(), foreach=False)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, WIDTH, device="cuda")).sum().backward()
        optimizer.step()


def ddp() -> None:
    train(DistributedDataParallel(blocks()))


def zero() -> None:
    def optimizer(parameters: Iterator[nn.Parameter], **options: Any) -> Any:
        return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, **options)

    train(DistributedDataParallel(blocks()), optimizer)


def fsdp1() -> None:
    policy = ModuleWrapPolicy({Block})
    train(FullyShardedDataParallel(blocks(), auto_wrap_policy=policy, device_id=0))


def fsdp2(mesh: Any = None) -> None:
    model = blocks()
    for block in model:
        fully_shard(block, mesh=mesh)
    train(fully_shard(model, mesh=mesh))


def hsdp() -> None:
    fsdp2(init_device_mesh("cuda", (2, R // 2), mesh_dim_names=("replicate", "shard")))


def tensor_parallel(mesh: Any = None) -> nn.Sequential:
    model = blocks()
    mesh = mesh or init_device_mesh("cuda", (R,), mesh_dim_names=("tp",))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def tp() -> None:
    train(tensor_parallel())


def tp_and_fsdp2() -> None:
    mesh = init_device_mesh("cuda", (2, R // 2), mesh_dim_names=("dp", "tp"))
    model = tensor_parallel(mesh["tp"])
    for block in model:
        fully_shard(block, mesh=mesh["dp"])
    train(fully_shard(model, mesh=mesh["dp"]))


# The closed forms.


def rows(n: int, ranks: int, rank: int) -> int:
    """Of n, as `torch.chunk` gives them out: as many as the first rank has, until none are left."""
    chunk = -(-n // ranks)
    return max(0, min(chunk, n - rank * chunk))


def sharded(shapes: list[tuple[int, ...]], ranks: int, rank: int) -> Held:
    """FSDP2: rows of each parameter. Parameters and gradients are padded to the first rank's."""
    padded = sum(rows(shape[0], ranks, 0) * prod(shape[1:]) for shape in shapes)
    own = sum(rows(shape[0], ranks, rank) * prod(shape[1:]) for shape in shapes)
    return Held(BLOCKS * padded, BLOCKS * padded, BLOCKS * own)


def all_of(elements: int) -> Held:
    return Held(elements, elements, elements)


def flat(rank: int) -> Held:
    """FSDP1: a block is one vector, padded to R equal parts."""
    return all_of(BLOCKS * -(-ELEMENTS // R))


def partitioned(rank: int) -> Held:
    """ZeRO-1: whole parameters, the largest first, each to the rank that has least."""
    loads = [0] * R
    for size in sorted(BLOCKS * [prod(shape) for shape in SHAPES], reverse=True):
        loads[loads.index(min(loads))] += size
    return Held(BLOCKS * ELEMENTS, BLOCKS * ELEMENTS, loads[rank])


def tensor_shapes(ranks: int, rank: int) -> list[tuple[int, ...]]:
    own = rows(HIDDEN, ranks, rank)
    return [(WIDTH,), (WIDTH,), (own, WIDTH), (own,), (WIDTH, own), (WIDTH,)]


CASES: dict[str, tuple[Callable[[], None], Callable[[int], Held]]] = {
    "ddp": (ddp, lambda rank: all_of(BLOCKS * ELEMENTS)),
    "zero": (zero, partitioned),
    "fsdp1": (fsdp1, flat),
    "fsdp2": (fsdp2, lambda rank: sharded(SHAPES, R, rank)),
    "hsdp": (hsdp, lambda rank: sharded(SHAPES, R // 2, rank % 2)),
    "tp": (tp, lambda rank: all_of(BLOCKS * sum(map(prod, tensor_shapes(R, rank))))),
    "tp and fsdp2": (tp_and_fsdp2, lambda rank: sharded(tensor_shapes(2, rank % 2), 2, rank // 2)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rank", range(R))
def test_a_rank_holds_what_the_closed_form_says(name: str, rank: int) -> None:
    program, closed_form = CASES[name]

    def script() -> None:
        dist.init_process_group("nccl")
        program()

    assert held(torchtally.run(script, gpu=f"{R}xH100-SXM", rank=rank)) == closed_form(rank)

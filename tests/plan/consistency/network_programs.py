"""A decoder that trains in each kind of parallelism, with torch's own: the traced half of what
`plan` says that chips send.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

BATCH, SEQUENCE, WIDTH, HEADS, HIDDEN, VOCABULARY, LAYERS, RANKS = 2, 256, 64, 4, 128, 256, 2, 4
EXPERTS, ACTIVE = 4, 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for part in (self.q(x), self.k(x), self.v(x))
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.o(y.transpose(1, 2).flatten(-2))
        return out


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Mixture(nn.Module):
    """An expert on each rank; tokens are routed evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.expert = nn.Linear(WIDTH, EXPERTS, bias=False), FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        scores, _ = self.router(x).softmax(-1).topk(ACTIVE, dim=-1)
        group: Any = dist.group.WORLD
        rows = x.flatten(0, 1).repeat_interleave(ACTIVE, dim=0)
        there = all_to_all_single_autograd(rows, None, None, group)
        back = all_to_all_single_autograd(self.expert(there), None, None, group)
        weighted = back.unflatten(0, (*x.shape[:2], ACTIVE)) * scores.unsqueeze(-1)
        return weighted.sum(-2)


class Layer(nn.Module):
    def __init__(self, *, is_mixture: bool = False) -> None:
        super().__init__()
        self.norm, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.ffn_norm, self.ffn = nn.RMSNorm(WIDTH), Mixture() if is_mixture else FeedForward()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        out: Tensor = x + self.ffn(self.ffn_norm(x))
        return out


class Decoder(nn.Module):
    def __init__(self, *, is_mixture: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(is_mixture=is_mixture) for _ in range(LAYERS))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(self.norm(x))
        return out


def tokens() -> Tensor:
    return torch.zeros(BATCH, SEQUENCE, dtype=torch.long, device="cuda")


def train(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for _ in range(3):
        model(tokens()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def data_parallel() -> None:
    train(DistributedDataParallel(Decoder().cuda()))


def sharded(mesh: Any = None) -> None:
    model = Decoder().cuda()
    for unit in (model.embedding, *model.layers, model.norm, model.head):
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)
    train(fully_shard(model, mesh=mesh, reshard_after_forward=True))


def sharded_in_groups() -> None:
    sharded(init_device_mesh("cuda", (2, RANKS // 2), mesh_dim_names=("replicate", "shard")))


def tensor_parallel() -> None:
    model, mesh = Decoder().cuda(), init_device_mesh("cuda", (RANKS,))
    whole, split = ColwiseParallel(), RowwiseParallel()
    for layer in model.layers:
        plan = {f"attention.{name}": whole for name in "qkv"}
        plan |= {"attention.o": split, "ffn.gate": whole, "ffn.up": whole, "ffn.down": split}
        inputs = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
        parallelize_module(layer, mesh, plan | {"attention": inputs, "ffn": inputs})
    ends = {"embedding": RowwiseParallel(input_layouts=Replicate()), "head": whole}
    train(parallelize_module(model, mesh, ends))


def sequence_parallel() -> None:
    model, mesh = Decoder().cuda(), init_device_mesh("cuda", (RANKS,))
    whole, split = ColwiseParallel(), RowwiseParallel(output_layouts=Shard(1))
    inputs = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    for layer in model.layers:
        plan: dict[str, Any] = {f"attention.{name}": whole for name in "qkv"}
        plan |= {"attention.o": split, "ffn.gate": whole, "ffn.up": whole, "ffn.down": split}
        plan |= {"norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
        parallelize_module(layer, mesh, plan | {"attention": inputs, "ffn": inputs})
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1)),
    }
    train(parallelize_module(model, mesh, ends))


def context_parallel_and_data_parallel() -> None:
    mesh = init_device_mesh("cuda", (RANKS,))
    model = DistributedDataParallel(Decoder().cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for _ in range(3):
        batch = tokens()
        with context_parallel(mesh, buffers=[batch], buffer_seq_dims=[1]):
            model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


MICRO_BATCHES = 3


def pipeline() -> None:
    """GPipe by hand, for the last stage: it gets activations, and sends gradients back."""
    rank = dist.get_rank()
    layer, head = Layer().cuda(), nn.Linear(WIDTH, VOCABULARY, bias=False).cuda()
    optimizer = torch.optim.SGD([*layer.parameters(), *head.parameters()], lr=0.1, foreach=False)
    for _ in range(3):
        inputs = []
        for _ in range(MICRO_BATCHES):
            x = torch.empty(BATCH, SEQUENCE, WIDTH, device="cuda")
            dist.recv(x, rank - 1)
            inputs.append(x.requires_grad_())
        losses = [head(layer(x)).sum() for x in inputs]
        for x, loss in zip(inputs, losses, strict=True):
            loss.backward()
            assert x.grad is not None
            dist.send(x.grad, rank - 1)
        optimizer.step()
        optimizer.zero_grad()


def expert_parallel() -> None:
    """Experts' gradients stay where they are, the others' are summed."""
    model = Decoder(is_mixture=True).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    for _ in range(3):
        model(tokens()).sum().backward()
        for name, parameter in model.named_parameters():
            if ".expert." not in name:
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()

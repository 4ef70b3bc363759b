"""Compiled tensor parallelism: collectives under way that enter a graph, and asynchronous ones."""

from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._inductor import config
from torch.distributed import _functional_collectives as functional
from torch.distributed import _symmetric_memory as symmetric
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torchtally
from torchtally.trace import Phase, Trace
from torchtally.work import Kind, cost_of

RANKS, TOKENS, WIDTH = 4, 256, 64


def run(script: object) -> Trace:
    assert callable(script)

    def in_a_group() -> None:
        dist.init_process_group("nccl")
        script()

    return torchtally.run(in_a_group, gpu=f"{RANKS}xH100-SXM", writes="private")


@pytest.mark.thorough
def test_a_graph_begins_with_a_collective_under_way() -> None:
    """As with tensor parallelism, whose inputs are gathered: the compiler waits for it."""

    def script() -> None:
        layer = nn.Linear(8, 8, device="cuda")

        @torch.compile
        def compiled(x: Tensor) -> Tensor:
            return checkpoint(lambda y: y + layer(y), x, use_reentrant=False)

        for _ in range(2):
            own = torch.ones(4, 8, device="cuda")
            gathered = functional.all_gather_tensor(own, 0, dist.group.WORLD)
            assert isinstance(gathered, functional.AsyncCollectiveTensor)
            assert compiled(gathered).shape == (4 * RANKS, 8)

    notes = [note.text for note in run(script).notes]
    assert not [text for text in notes if "eagerly" in text]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.relu(self.up(x)))
        return out


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_inductor_pipelines_products_with_their_collectives() -> None:
    """Forward a gather and a reduction in 4 pieces each, backward as many of gradients; the gather
    again for the weight's gradient. Nothing is recomputed.
    """

    def script() -> None:
        mesh = init_device_mesh("cuda", (RANKS,))
        symmetric.enable_symm_mem_for_group(mesh.get_group().group_name)
        model = Block().cuda()
        plan = {
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0)),
        }
        compiled = torch.compile(parallelize_module(model, mesh, plan))
        x = torch.randn(TOKENS // RANKS, WIDTH, device="cuda", requires_grad=True)
        compiled(DTensor.from_local(x, mesh, [Shard(0)])).sum().backward()

    with config.patch(_micro_pipeline_tp=True):
        trace = run(script)
    assert not [note.text for note in trace.notes if "eagerly" in note.text]
    calls = Counter((trace.calls[op.call].name, op.phase) for op in trace.ops)
    assert calls["symm_mem.get", Phase.FORWARD] == 2 * (RANKS - 1)
    assert calls["symm_mem.get", Phase.BACKWARD] >= 2 * (RANKS - 1)
    flops: Counter[Phase] = Counter()
    for op in trace.ops:
        kind, cost = cost_of(trace.calls[op.call])
        flops[op.phase] += cost.flops * (kind is Kind.PRODUCT)
    product = 2 * TOKENS * WIDTH * (4 * WIDTH // RANKS)
    assert flops[Phase.FORWARD] == 2 * product
    assert flops[Phase.BACKWARD] == 4 * product
    assert flops[Phase.RECOMPUTE] == 0

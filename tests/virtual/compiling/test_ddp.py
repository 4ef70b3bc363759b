"""torch.compile with DistributedDataParallel: a graph for each of its buckets."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.traces import accounted, traced
from torchtally.ledger import Ledger
from torchtally.trace import Phase
from torchtally.work import Kind

pytestmark = pytest.mark.one_case_in(2)

WIDTH, BLOCKS = 1024, 3
ELEMENTS = BLOCKS * (8 * WIDTH * WIDTH + 5 * WIDTH)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


class Normed(Block):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def plain(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def inside(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(torch.compile(model))  # type: ignore[arg-type]


def outside(model: nn.Module) -> nn.Module:
    return torch.compile(DistributedDataParallel(model))  # type: ignore[return-value]


def trained(wrap: Callable[[nn.Module], nn.Module]) -> Ledger:
    def script() -> None:
        dist.init_process_group("nccl")
        model = wrap(nn.Sequential(*(Block() for _ in range(BLOCKS))).cuda())
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(2):
            model(torch.randn(64, WIDTH, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return accounted(script, gpu="8xH100-SXM")


@pytest.fixture(scope="module")
def eager() -> Ledger:
    return trained(plain)


@pytest.mark.parametrize("wrap", [inside, outside])
def test_it_is_compiled_and_reduces_the_same(
    eager: Ledger, wrap: Callable[[nn.Module], nn.Module]
) -> None:
    ledger = trained(wrap)
    assert not any("eagerly" in note.text for note in ledger.trace.notes)
    # Gradients become ready in another order, so that buckets are cut at other places.
    assert sum(reduced(ledger)) == sum(reduced(eager)) == 4 * ELEMENTS
    assert len(reduced(ledger)) == len(reduced(eager)) > 2
    of_products = [entry.cost.flops for entry in ledger.entries if entry.kind is Kind.PRODUCT]
    assert sum(of_products) == sum(
        entry.cost.flops for entry in eager.entries if entry.kind is Kind.PRODUCT
    )
    modules = {path.module for path in ledger.by_module()}
    assert {f"module.{block}.{part}" for block in range(BLOCKS) for part in ("up", "down")} < (
        modules
    )
    assert not any("ompiled" in module or "Graph" in module for module in modules)


def reduced(ledger: Ledger) -> list[int]:
    """Bytes of each bucket of the last step."""
    return [
        entry.cost.bytes_read
        for entry in ledger.reported
        if entry.call.name == "c10d.allreduce_" and entry.op.phase is Phase.BACKWARD
    ]


HELD = [(755_336_192, 486_884_352, 621_229_056)] + 3 * [(1_057_567_744, 755_561_472, 621_229_056)]
"""Bytes after forward, backward and optimizer, as PyTorch 2.13.0+cu130 has them."""
PEAK = 1_124_677_120
"""Of each step but the first, in which kernels were timed."""


@pytest.mark.thorough("test_it_is_compiled_and_reduces_the_same, and test_against_gloo.py")
@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="recorded with 2.13")
def test_every_step_holds_what_the_cuda_build_holds() -> None:
    """Printed by this script there, by `python -m tests.truth.driver`, with
    `init_process_group("fake", store=FakeStore(), rank=0, world_size=8)`. That group hands no
    values on: no first broadcast, no buckets built anew, and gradients by a hook.
    """
    held: list[tuple[int, ...]] = []
    peaks: list[int] = []

    def handed_on(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def script() -> None:
        dist.init_process_group("nccl")
        blocks = nn.Sequential(*(Normed() for _ in range(4))).cuda()
        model = DistributedDataParallel(
            torch.compile(blocks), init_sync=False, find_unused_parameters=True
        )  # type: ignore[arg-type]
        model.register_comm_hook(None, handed_on)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        allocated = torch.cuda.memory_allocated
        for _ in HELD:
            torch.cuda.reset_peak_memory_stats()
            x = torch.zeros(8, 512, WIDTH, device="cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(x).pow(2).mean()
            after_forward = allocated()
            loss.backward()
            after_backward = allocated()
            optimizer.step()
            optimizer.zero_grad()
            held.append((after_forward, after_backward, allocated()))
            peaks.append(torch.cuda.max_memory_allocated())

    traced(script, gpu="8xH100-SXM")
    assert held == HELD
    assert peaks[1:] == 3 * [PEAK]

"""mode="reduce-overhead": torch's trees of CUDA graphs, on private pools of the virtual GPU."""

from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchtally
from tests.traces import ops, traced
from torchtally.ledger.steps import course_of
from torchtally.memory.allocator import replay
from torchtally.timing.targets import roofline
from torchtally.trace import Frame, Phase, Trace

WIDTH, ROWS = 256, 512
STEPS = 4
"""One warms the graphs up, one captures them, and two replay them."""


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def train(mode: str, *rows: int) -> list[tuple[int, int]]:
    """Bytes allocated and reserved after each step."""
    model = Layer().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    run = torch.compile(model, mode=mode)
    memory = []
    for each in rows or (ROWS,) * STEPS:
        run(torch.randn(each, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        memory.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    return memory


@pytest.fixture(scope="module")
def plain() -> Trace:
    return traced(lambda: train("default"))


@pytest.fixture(scope="module")
def graphed() -> Trace:
    return traced(lambda: train("reduce-overhead"))


def kernels(trace: Trace, step: int) -> Counter[tuple[object, ...]]:
    """Kernels of compiled code and products of one step, with phase, line and module."""
    start, end = (0, *trace.step_ends)[step : step + 2]
    return Counter(
        (op.call.name, op.phase, op.site.line, op.site.module)
        for op in ops(trace)
        if start <= op.clock < end and ("triton" in op.call.name or "mm" in op.call.name)
    )


def test_a_replay_runs_the_kernels_of_the_default_mode_where_they_belong(
    plain: Trace, graphed: Trace
) -> None:
    expected = kernels(plain, STEPS - 1)
    assert {phase for _, phase, *_ in expected} >= {Phase.FORWARD, Phase.BACKWARD}
    assert any("F.gelu" in line.text for _, _, line, _ in expected if isinstance(line, Frame))
    for step in range(STEPS):
        assert kernels(graphed, step) == expected


def test_replayed_steps_are_training_steps_alike(plain: Trace, graphed: Trace) -> None:
    steps = course_of(graphed).steps
    assert [step.like for step in steps][2:] == [3, 3]
    assert torchtally.account(graphed).total.flops == torchtally.account(plain).total.flops


def test_the_host_issues_the_kernels_of_a_replay_at_once(plain: Trace, graphed: Trace) -> None:
    """Two launches in place of one for each kernel; a small model waits for its host."""

    def last_step_s(trace: Trace) -> float:
        ledger = torchtally.account(trace, roofline=roofline("H100-SXM"))
        start = trace.step_ends[-2]
        return sum(ledger.slot(each).seconds for each in ledger.entries if each.op.clock >= start)

    assert last_step_s(graphed) < 0.8 * last_step_s(plain)


@pytest.mark.usefixtures("gpu")
def test_a_captured_step_is_reserved_and_not_allocated() -> None:
    """Weights, two moments and what each graph keeps: seed, offset."""
    weights = 4 * sum(parameter.numel() for parameter in Layer().parameters())
    *_, before, last = train("reduce-overhead")
    assert before == last
    allocated, reserved = last
    assert 3 * weights < allocated < 3 * weights + 2**20
    saved = ROWS * 4 * WIDTH * 4
    assert reserved > allocated + 2 * saved
    pools = [each for each in torch.cuda.memory_snapshot() if each["segment_pool_id"] != (0, 0)]
    assert sum(segment["total_size"] for segment in pools) > 2 * saved
    assert sum(segment["allocated_size"] for segment in pools) == 0


def test_a_trace_run_through_the_allocator_again_reserves_the_same(graphed: Trace) -> None:
    again = replay(graphed)
    assert again.peak_reserved_bytes == max(each.bytes for each in graphed.reserved)
    assert any(storage.pool for storage in graphed.storages)


@pytest.mark.thorough("test_a_replay_runs_the_kernels_of_the_default_mode_where_they_belong")
@pytest.mark.usefixtures("gpu")
def test_another_length_is_captured_after_replays() -> None:
    """The graphs of both lengths lie in one pool; each is replayed as it was captured."""
    rows = [ROWS] * 3 + [2 * ROWS] * 3 + [ROWS, 2 * ROWS]
    memory = train("reduce-overhead", *rows)
    assert memory[-1] == memory[-2]
    allocated, reserved = zip(*memory, strict=True)
    assert reserved[-1] < 3 * reserved[2]
    assert allocated[-1] < allocated[2] + 2**20


@pytest.mark.thorough
@pytest.mark.usefixtures("gpu")
def test_a_graph_captured_while_a_replayed_ones_results_live_leaves_them_alone() -> None:
    """The allocator's pool is put back to what it was when the first capture ended."""
    first = torch.compile(lambda x: x.sin() @ x, mode="reduce-overhead")
    second = torch.compile(lambda x: x.cos() @ x, mode="reduce-overhead")
    x = torch.randn(ROWS, ROWS, device="cuda")
    for number in range(8):
        torch.compiler.cudagraph_mark_step_begin()
        y = first(x)
        if number > 3:
            z = second(y)
            assert y.data_ptr() != z.data_ptr()
            del z
        del y


@pytest.mark.thorough
@pytest.mark.usefixtures("gpu")
def test_a_result_that_the_next_run_overwrites_is_torchs_error() -> None:
    run = torch.compile(lambda x: x.sin() + 1, mode="reduce-overhead")
    x = torch.randn(ROWS, device="cuda")
    run(x)
    first = run(x)
    run(x)
    with pytest.raises(RuntimeError, match="has been overwritten by a subsequent run"):
        first + 1


@pytest.mark.thorough
def test_a_graph_that_is_not_captured_says_why() -> None:
    def script() -> None:
        run = torch.compile(lambda x, y: x.add_(1) + y.sum(), mode="reduce-overhead")
        run(torch.zeros(ROWS, device="cuda"), torch.ones(ROWS, device="cuda"))

    notes = [note.text for note in traced(script).notes]
    assert any("skipping cudagraphs due to mutated inputs" in text for text in notes), notes

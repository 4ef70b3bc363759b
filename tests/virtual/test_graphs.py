"""CUDA graphs: captured operators run when the graph is replayed, at the line that replays it."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchtally
from tests.traces import accounted, ops, traced
from torchtally.ledger import Ledger
from torchtally.ledger.steps import course_of
from torchtally.timing.constants import GRAPH_GAP_S
from torchtally.timing.roofline.launches import launches_of
from torchtally.timing.targets import roofline
from torchtally.trace import Phase

PRODUCT_FLOPS = 2 * 8 * 16 * 4
"""(8, 16) @ (16, 4)."""


def product() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 16, device="cuda"), torch.randn(16, 4, device="cuda")


def test_captured_operators_are_counted_once_for_each_replay():
    def script() -> None:
        a, b = product()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            c = a @ b
        assert c.shape == (8, 4)
        graph.replay()
        graph.replay()  # the second replay

    ledger = accounted(script)
    products = [entry for entry in ledger.entries if entry.call.name == "aten.mm"]
    assert [entry.cost.flops for entry in products] == [PRODUCT_FLOPS] * 2
    assert [entry.site.line.text for entry in products] == [
        "graph.replay()",
        "graph.replay()  # the second replay",
    ]


def test_a_capture_without_a_replay_costs_nothing():
    def script() -> None:
        a, b = product()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            a @ b

    assert ops(traced(script), "aten.mm") == []


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(64, 64, device="cuda")
    return model, torch.optim.AdamW(model.parameters(), capturable=True)


def train_in_a_graph() -> None:
    """The whole step captured, as in torch's notes on CUDA graphs."""
    model, optimizer = model_and_optimizer()
    x = torch.randn(16, 64, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x).sum().backward()
        optimizer.step()
    for _ in range(3):
        graph.replay()


def train_eagerly() -> None:
    model, optimizer = model_and_optimizer()
    x = torch.randn(16, 64, device="cuda")
    for _ in range(4):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def flops_by_phase(ledger: Ledger) -> dict[Phase, int]:
    return {
        phase: sum(entry.cost.flops for entry in ledger.entries if entry.op.phase is phase)
        for phase in Phase
    }


def test_a_replayed_step_is_a_training_step_of_the_same_flops():
    eager, replayed = accounted(train_eagerly), accounted(train_in_a_graph)
    assert len(replayed.trace.step_ends) == len(eager.trace.step_ends) == 4
    assert flops_by_phase(replayed) == flops_by_phase(eager)


def test_replays_are_steps_alike_whatever_was_captured():
    """The batch is copied in before each replay, at a tick at which the capture began."""

    def script() -> None:
        model, optimizer = model_and_optimizer()
        x = torch.randn(16, 64, device="cuda")
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(x).sum().backward()
            optimizer.step()
        for _ in range(3):
            x.copy_(torch.randn(16, 64))
            graph.replay()

    course = course_of(traced(script))
    assert [step.like for step in course.steps] == [1, 2, 2, 2]


def test_the_host_issues_a_graph_at_once():
    """All kernels of a replay but the first follow one another by a graph's gap, without a wait for
    the host.
    """
    eager, replayed = (
        torchtally.account(traced(script), roofline=roofline("H100-SXM"))
        for script in (train_eagerly, train_in_a_graph)
    )
    assert replayed.total.seconds < eager.total.seconds / 2
    start = replayed.trace.step_ends[-2]
    last = [entry for entry in replayed.entries if entry.op.clock >= start]
    kernels = [entry for entry in last if replayed.slot(entry).kernel_s]
    assert len(kernels) > 10
    for entry in kernels[1:]:
        slot, cost = replayed.slot(entry), replayed.costs[entry.op.call]
        gap_s = GRAPH_GAP_S * launches_of(entry.call, cost.kind, cost.exact)
        assert slot.seconds == pytest.approx(slot.kernel_s + gap_s)


def test_make_graphed_callables_counts_forward_and_backward_at_the_lines_that_call():
    def script() -> None:
        model = nn.Linear(64, 64, device="cuda")
        x = torch.randn(16, 64, device="cuda", requires_grad=True)
        graphed = torch.cuda.make_graphed_callables(model, (x,))
        torch.zeros(1, device="cuda")  # here the warm-up ends
        y = graphed(x)
        y.sum().backward()

    trace = traced(script)
    start = ops(trace, "aten.zeros")[-1].clock
    after = [op for op in ops(trace) if op.clock > start]
    forward = [op for op in after if op.call.name == "aten.addmm"]
    backward = [op for op in after if op.call.name == "aten.mm"]
    assert [(op.phase, op.site.line.text) for op in forward] == [(Phase.FORWARD, "y = graphed(x)")]
    assert [op.phase for op in backward] == [Phase.BACKWARD] * 2


@pytest.mark.usefixtures("gpu")
def test_values_of_a_capture_are_those_of_no_run():
    x = torch.ones(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + 1
    assert "..." in repr(y)
    assert x.tolist() == [1, 1]
    y.fill_(3)
    assert y.tolist() == [3, 3]
    graph.replay()
    assert "..." in repr(y)


@pytest.mark.usefixtures("gpu")
def test_the_host_cannot_wait_within_a_capture():
    x = torch.ones(2, device="cuda")
    for wait in (x.sum().item, torch.cuda.synchronize, x.cpu):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            assert torch.cuda.is_current_stream_capturing()
            with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
                wait()
        assert not torch.cuda.is_current_stream_capturing()


@pytest.mark.usefixtures("gpu")
def test_a_replay_before_a_capture_is_torchs_own_error():
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        torch.cuda.CUDAGraph().replay()


@pytest.mark.usefixtures("gpu")
def test_a_graph_replayed_within_a_capture_is_part_of_it():
    a, b = product()
    inner, outer = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(inner):
        a @ b
    with torch.cuda.graph(outer, pool=inner.pool()):
        inner.replay()
        F.relu(a)
    assert outer.pool() == inner.pool()
    outer.replay()

"""Training steps of scripts that update their weights without a torch optimizer."""

from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn

import torchtally
from tests.traces import names, ops, traced
from torchtally.runs.probe.allocations import AllocationRecorder
from torchtally.trace import Phase, Role, Trace
from torchtally.tracer.session import ignore_step
from torchtally.tracer.steps import StepLimit, Steps, StepsDone
from torchtally.views.parameters import parameters_of
from torchtally.virtual.stand_ins import apply

pytestmark = pytest.mark.one_case_in(3)

B, D, STEPS = 2, 8, 4


def weight() -> Tensor:
    return torch.ones(D, D, device="cuda", requires_grad=True)


def loss(*weights: Tensor) -> Tensor:
    x = torch.ones(B, D, device="cuda")
    for w in weights:
        x = x @ w
    return x.sum()


def in_place() -> None:
    w = weight()
    for _ in range(STEPS):
        loss(w).backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
        w.grad = None


def with_decay() -> None:
    """The term of the weight is computed before its gradient is read."""
    first, second = weight(), weight()
    for _ in range(STEPS):
        loss(first, second).backward()
        with torch.no_grad():
            for w in (first, second):
                w -= 0.1 * (0.01 * w + w.grad)
                w.grad = None


def on_the_data() -> None:
    w = weight()
    for _ in range(STEPS):
        loss(w).backward()
        w.data.add_(w.grad, alpha=-0.1)
        w.grad.zero_()


def on_the_data_of_several() -> None:
    weights = [weight(), weight()]
    for _ in range(STEPS):
        loss(*weights).backward()
        for w in weights:
            w.data.add_(w.grad, alpha=-0.1)
            w.grad.zero_()


def foreach() -> None:
    weights = [weight(), weight()]
    for _ in range(STEPS):
        gradients = torch.autograd.grad(loss(*weights), weights)
        with torch.no_grad():
            torch._foreach_add_(weights, gradients, alpha=-0.1)


def functional() -> None:
    w = weight()
    for _ in range(STEPS):
        loss(w).backward()
        w = (w - 0.1 * w.grad).detach().requires_grad_()


def gradients_returned() -> None:
    weights = [weight(), weight()]
    for _ in range(STEPS):
        gradients = torch.autograd.grad(loss(*weights), weights)
        with torch.no_grad():
            for w, gradient in zip(weights, gradients, strict=True):
                w -= 0.1 * gradient


def transformed() -> None:
    """`torch.func`: no tensor requires grad."""
    w = torch.ones(D, D, device="cuda")
    for _ in range(STEPS):
        w = w - 0.1 * torch.func.grad(loss)(w)


def accumulated() -> None:
    w = weight()
    for _ in range(STEPS):
        for _ in range(3):
            loss(w).backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
            w.grad.zero_()


def adam() -> None:
    weights = [weight(), weight()]
    states = [(torch.zeros_like(w), torch.zeros_like(w)) for w in weights]
    for _ in range(STEPS):
        loss(*weights).backward()
        with torch.no_grad():
            for w, (m, v) in zip(weights, states, strict=True):
                m.mul_(0.9).add_(w.grad, alpha=0.1)
                v.mul_(0.9).addcmul_(w.grad, w.grad, value=0.1)
                w -= 0.1 * m / (v.sqrt() + 1e-8)
                w.grad = None


def of_a_module() -> None:
    model = nn.Sequential(nn.Linear(D, D), nn.Linear(D, D)).cuda()
    for _ in range(STEPS):
        model(torch.ones(B, D, device="cuda")).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        model.zero_grad()


def evaluated() -> None:
    w = weight()
    for _ in range(STEPS):
        with torch.no_grad():
            print(loss(w).item())
        loss(w).backward()
        with torch.no_grad():
            w -= 0.1 * w.grad
        w.grad = None


EVERY = (
    in_place, with_decay, on_the_data, on_the_data_of_several, foreach, functional,
    gradients_returned, transformed, accumulated, adam, of_a_module, evaluated,
)  # fmt: skip


@pytest.mark.parametrize("script", EVERY)
def test_an_update_ends_a_step(script: Callable[[], None]) -> None:
    trace = traced(script)
    assert len(trace.step_ends) == STEPS
    assert torchtally.account(trace).period.startswith("steady-state step")


@pytest.mark.parametrize("script", EVERY)
def test_a_script_is_stopped_after_its_updates(script: Callable[[], None]) -> None:
    trace = traced(script, steps=2)
    assert len(trace.step_ends) == 2
    assert trace.ending.kind == "steps"


@pytest.mark.parametrize("script", EVERY)
def test_what_is_updated_is_the_parameter(script: Callable[[], None]) -> None:
    """As many as a step has, however many tensors take their place."""
    expected = {
        in_place: D * D, on_the_data: D * D, functional: D * D, transformed: D * D,
        accumulated: D * D, evaluated: D * D, of_a_module: 2 * (D * D + D),
    }.get(script, 2 * D * D)  # fmt: skip
    parameters = parameters_of(torchtally.account(traced(script)))
    assert parameters is not None
    assert (parameters.trained, parameters.frozen) == (expected, 0)


@pytest.mark.parametrize("script", EVERY)
def test_an_update_is_of_the_optimizers_phase_and_a_forward_pass_is_not(
    script: Callable[[], None],
) -> None:
    trace = traced(script)
    assert set(names(trace, Phase.OPTIMIZER)).isdisjoint({"aten.mm", "aten.sum", "aten.addmm"})
    updates = {
        "aten.sub_", "aten.sub", "aten.add_", "aten._foreach_add_", "aten.sqrt", "aten.addcmul_"
    }  # fmt: skip
    assert set(names(trace, Phase.FORWARD)).isdisjoint(updates)
    assert set(names(trace, Phase.OPTIMIZER)) & updates


def test_state_that_is_kept_by_hand_is_optimizer_state() -> None:
    state = [s for s in traced(adam).storages if s.role is Role.OPTIMIZER_STATE]
    assert [s.requested_bytes for s in state] == [4 * D * D] * 4


def test_evaluation_between_updates_by_hand_is_told_apart() -> None:
    """Of each step: a product forward and one for the gradient."""
    ledger = torchtally.account(traced(evaluated))
    assert ledger.total.flops_matmul == 2 * 2 * B * D * D
    whole = torchtally.account(ledger.trace, step="all")
    assert whole.total.flops_matmul == 3 * STEPS * 2 * B * D * D


def test_gradients_that_are_only_printed_end_no_step() -> None:
    def script() -> None:
        w = weight()
        for _ in range(3):
            loss(w).backward()
            print(w.grad.norm().item())

    assert traced(script).step_ends == ()


def test_with_a_torch_optimizer_its_steps_count() -> None:
    """Weights that are clipped by hand after it make no second step."""

    def script() -> None:
        w = weight()
        optimizer = torch.optim.SGD([w], lr=0.1)
        for _ in range(3):
            loss(w).backward()
            optimizer.step()
            optimizer.zero_grad()
            w.data.clamp_(-1, 1)

    assert len(traced(script).step_ends) == 3


def test_an_optimizer_that_is_gone_does_not_hide_updates_by_hand() -> None:
    def script() -> None:
        w = weight()
        optimizer = torch.optim.SGD([w], lr=0.1)
        loss(w).backward()
        optimizer.step()
        del optimizer
        in_place()

    assert len(traced(script).step_ends) == 1 + STEPS


def test_an_optimizer_that_is_made_later_counts_from_then_on() -> None:
    def script() -> None:
        in_place()
        w = weight()
        optimizer = torch.optim.SGD([w], lr=0.1)
        loss(w).backward()
        optimizer.step()

    trace = traced(script)
    assert len(trace.step_ends) == STEPS + 1
    assert list(trace.step_ends) == sorted(set(trace.step_ends))


def test_an_inner_loop_that_is_differentiated_is_no_step() -> None:
    """MAML: the update of the inner loop is part of the forward pass."""

    def script() -> None:
        w = weight()
        optimizer = torch.optim.SGD([w], lr=0.1)
        for _ in range(2):
            (gradient,) = torch.autograd.grad(loss(w).square(), [w], create_graph=True)
            loss(w - 0.1 * gradient).backward()
            optimizer.step()
            optimizer.zero_grad()

    trace = traced(script)
    assert len(trace.step_ends) == 2
    assert {op.phase for op in ops(trace, "aten.sub")} == {Phase.FORWARD}


def test_what_the_recorder_follows_keeps_no_tensor_alive() -> None:
    def script() -> None:
        in_place()
        assert torch.cuda.memory_allocated() < 70 << 20  # the library's workspace alone

    trace: Trace = traced(script)
    assert len(trace.step_ends) == STEPS


# Recorders that keep no operators --------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("script", EVERY)
@pytest.mark.parametrize("steps", [2, None])
def test_a_probe_sees_the_same_steps(script: Callable[[], None], steps: int | None) -> None:
    recorder = AllocationRecorder()
    counting = Steps(recorder, StepLimit(steps), ignore_step)
    stand_ins = [*recorder.modules.stand_ins(), *counting.stand_ins()]
    with torchtally.virtual_gpu("H100-SXM", observer=recorder), apply(stand_ins), counting.watch():
        with suppress(StepsDone):
            script()
        with suppress(StepsDone):
            recorder.by_hand.finish()
    assert tuple(recorder.step_ends) == traced(script, steps=steps).step_ends
    assert len(recorder.step_ends) == (steps or STEPS)

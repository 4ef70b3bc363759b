"""Optimizer steps in one kernel: n = 32 parameters, so many FLOPs for each.

Parameters, gradients, moments take 4n bytes each, a step counter 4.
"""

import pytest
import torch
from torch import nn

from tests.work.calls import Recording, call, cost, given
from torchtally.trace import Call
from torchtally.work import Cost, Kind, cost_of

n = 32


def optimizer_call(
    name: str, *lists: str, written: int, scale: bool = False, **flags: bool
) -> Call:
    """The first `written` of the lists may be written to."""
    inputs = [given(each, 4, 8, written=place < written) for place, each in enumerate(lists)]
    if name != "sgd":
        inputs.append(given("state_steps"))
    if scale:
        inputs.append(given("grad_scale"))
    one = call(f"aten._fused_{name}_", inputs, **flags)
    return Call(one.name, "", one.inputs, (), one.literals, is_mutating=True)


ADAM = ("self", "grads", "exp_avgs", "exp_avg_sqs")
AMSGRAD = (*ADAM, "max_exp_avg_sqs")
ADAGRAD = ("self", "grads", "state_sums")
MOMENTUM = ("self", "grads", "momentum_buffer_list")
STEPS = [
    # four tensors and the step read, three written: not the gradient
    (optimizer_call("adam", *ADAM, written=4, amsgrad=False), Cost(13 * n, 16 * n + 4, 12 * n)),
    (optimizer_call("adamw", *ADAM, written=4), Cost(15 * n, 16 * n + 4, 12 * n)),
    (optimizer_call("adamw", *AMSGRAD, written=5, amsgrad=True), Cost(16 * n, 20 * n + 4, 16 * n)),
    # a gradient scale: unscaled gradients are stored
    (optimizer_call("adamw", *ADAM, written=4, scale=True), Cost(16 * n, 16 * n + 8, 16 * n)),
    (optimizer_call("adagrad", *ADAGRAD, written=3), Cost(7 * n, 12 * n + 4, 8 * n)),
    (optimizer_call("sgd", "self", "grads", written=2), Cost(2 * n, 8 * n, 4 * n)),
    (optimizer_call("sgd", *MOMENTUM, written=3), Cost(5 * n, 12 * n, 8 * n)),
    (optimizer_call("sgd", *MOMENTUM, written=3, nesterov=True), Cost(7 * n, 12 * n, 8 * n)),
    (optimizer_call("sgd", *MOMENTUM, written=3, is_first_step=True), Cost(2 * n, 8 * n, 8 * n)),
]


@pytest.mark.parametrize(("one", "expected"), STEPS)
def test_fused_optimizer(one: Call, expected: Cost) -> None:
    assert cost_of(one) == (Kind.OPTIMIZER, expected)


def test_a_fused_step_as_torch_calls_it() -> None:
    model = nn.Linear(8, 4, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    with Recording() as recording:
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    (one,) = recording.named("aten._fused_adamw_")
    assert cost(one) == Cost(15 * n, 16 * n + 4, 12 * n)


def test_unscaling_reads_and_writes_gradients() -> None:
    inputs = [given("self", 4, 8, written=True), given("found_inf", written=True)]
    one = call("aten._amp_foreach_non_finite_check_and_unscale_", [*inputs, given("inv_scale")])
    assert cost(one) == Cost(2 * n, 4 * n + 8, 4 * n + 4)

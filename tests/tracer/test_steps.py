"""Where a training step ends, and when the script is stopped."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchtally
from tests.traces import accounted, ops, traced
from torchtally.ledger.steps import course_of
from torchtally.trace import Ending, Phase
from torchtally.tracer.session import recording


def layer(size: int = 4) -> nn.Linear:
    return nn.Linear(size, size, bias=False, device="cuda")


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, size: int = 4) -> None:
    model(torch.ones(1, size, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("by_name", [True, False])
def test_backward_that_the_engine_is_asked_for(by_name: bool):
    """A schedule of pipelines keeps outputs without their data, which `backward` refuses."""

    def script() -> None:
        model = layer()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            out = model(torch.ones(1, 4, device="cuda", requires_grad=True))
            gradient = torch.ones_like(out)
            out.data = torch.empty(1, device="cuda")
            engine = torch.autograd.Variable._execution_engine
            if by_name:
                engine.run_backward(tensors=(out,), grad_tensors=(gradient,), keep_graph=False,
                                    create_graph=False, inputs=(), allow_unreachable=True,
                                    accumulate_grad=True)  # fmt: skip
            else:
                engine.run_backward((out,), (gradient,), False, False, (), True, True)
            optimizer.step()
            optimizer.zero_grad()

    trace = traced(script)
    phases = [op.phase for op in ops(trace, "aten.mm")]
    assert phases == [Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD] * 2
    (text,) = {op.site.line.text for op in ops(trace, "aten.mm") if op.site.line}
    assert text.startswith("out = model(")


def forever(reached: list[int] | None = None) -> Callable[[], None]:
    """A script that trains until it is stopped; `reached` counts the steps begun."""

    def script() -> None:
        model = layer()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while True:
            if reached is not None:
                reached.append(1)
            learn(model, optimizer)

    return script


def test_a_script_is_stopped_after_its_steps():
    reached: list[int] = []
    trace = traced(forever(reached), steps=3)
    assert len(trace.step_ends) == len(reached) == 3
    assert trace.ending.kind == "steps"
    assert trace.step_ends[-1] == trace.end


def test_without_a_number_it_runs_to_its_end():
    def script() -> None:
        model = layer()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            learn(model, optimizer)
        torch.zeros(1, device="cuda")  # evaluation, after the last step

    trace = traced(script, steps=None)
    assert len(trace.step_ends) == 4
    assert trace.ending.kind == "exit"
    assert trace.end > trace.step_ends[-1]


def test_a_scripts_own_handlers_do_not_keep_it_running():
    def script() -> None:
        try:
            forever()()
        except Exception:
            raise AssertionError("the script caught what ends it") from None

    assert len(traced(script, steps=2).step_ends) == 2


def test_what_a_script_raises_is_raised():
    def script() -> None:
        torch.zeros(1, device="cuda")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        traced(script)


def test_the_steady_step_is_the_last_one():
    """The first step also makes the optimizer's state: two more storages of 4 x 4."""

    def script() -> None:
        model = layer()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            learn(model, optimizer)

    trace = traced(script)
    ledger = torchtally.account(trace)
    first, end = trace.steady_step
    assert (first, end) == trace.step_ends[1:]
    assert ledger.period == "steady-state step 3"
    assert {entry.op.clock for entry in ledger.reported} == set(range(first, end))
    assert ledger.total.flops_matmul == 2 * 2 * 1 * 4 * 4


def test_without_a_step_the_whole_run_counts():
    def script() -> None:
        model = layer()
        with torch.no_grad():
            model(torch.ones(1, 4, device="cuda"))

    ledger = accounted(script)
    assert ledger.trace.step_ends == ()
    assert "whole run" in ledger.period
    assert ledger.total.flops_matmul == 2 * 4 * 4


# Several optimizers.


def test_a_gan_takes_one_step_when_both_have_stepped():
    def script() -> None:
        generator, critic = layer(), layer()
        optimizers = [torch.optim.Adam(m.parameters()) for m in (generator, critic)]
        for _ in range(3):
            learn(generator, optimizers[0])
            learn(critic, optimizers[1])

    trace = traced(script)
    assert len(trace.step_ends) == 3
    assert len(ops(trace, "aten.mm", Phase.FORWARD)) == 6
    # Each step has both products: the generator's and the critic's.
    assert torchtally.account(trace).total.flops_forward >= 2 * 2 * 16


def test_several_critic_steps_per_generator_step():
    """WGAN: five steps of the critic, one of the generator; that is one training step."""

    def script() -> None:
        generator, critic = layer(), layer()
        optimizers = [torch.optim.Adam(m.parameters()) for m in (generator, critic)]
        for _ in range(3):
            for _ in range(5):
                learn(critic, optimizers[1])
            learn(generator, optimizers[0])

    trace = traced(script)
    assert len(trace.step_ends) == 3
    ledger = torchtally.account(trace)
    assert (
        sum(e.call.name == "aten.mm" and e.op.phase is Phase.FORWARD for e in ledger.reported) == 6
    )


def test_an_optimizer_that_never_steps_is_not_waited_for_for_ever():
    def script() -> None:
        model, spare = layer(), layer()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        unused = torch.optim.SGD(spare.parameters(), lr=0.1)
        while unused is not None:
            learn(model, optimizer)

    ledger = accounted(script, steps=2)
    assert len(ledger.trace.step_ends) > 2  # all those taken meanwhile
    assert ledger.total.flops_matmul == 2 * 2 * 16  # of one of them


@pytest.mark.parametrize(
    ("taken", "kind", "steps"),
    [(1, "exit", 1), (3, "exit", 3), (3, "exception", 3), (1, "exception", 0)],
)
def test_an_optimizer_that_never_steps_hides_no_steps_of_a_short_script(
    taken: int, kind: str, steps: int
):
    """Where a script fails after one step, the other optimizer's turn may have been next."""
    with recording("H100-SXM", script="short.py") as run:
        model, spare = layer(), layer()
        optimizer, unused = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, spare))
        for _ in range(taken):
            learn(model, optimizer)
        assert len(run.trace(Ending(kind)).step_ends) == steps
        assert unused is not None


def test_an_optimizer_that_begins_late_is_waited_for_from_then_on():
    """A critic trained alone at first, for longer than anyone waits."""

    def script() -> None:
        generator, critic = layer(), layer()
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (generator, critic)]
        for _ in range(20):
            learn(critic, optimizers[1])
        for _ in range(3):
            learn(critic, optimizers[1])
            learn(generator, optimizers[0])

    ledger = accounted(script)
    assert ledger.total.flops_matmul == 2 * 2 * 2 * 16  # the last step is of both


def test_one_optimizer_after_another():
    """Two stages of training, each with its own."""

    def script() -> None:
        model = layer()
        for _ in range(2):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                learn(model, optimizer)
            del optimizer

    assert len(traced(script).step_ends) == 6


@pytest.mark.parametrize("counts", [(3, 3), (3, 3, 3), (2, 20, 2), (4, 2)])
def test_models_trained_one_after_the_other_share_no_step(counts: tuple[int, ...]):
    """Every model and optimizer is made before the first step."""

    def script() -> None:
        models = [layer() for _ in counts]
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
        for model, optimizer, count in zip(models, optimizers, counts, strict=True):
            for _ in range(count):
                learn(model, optimizer)

    trace = traced(script, steps=None)
    assert len(trace.step_ends) == sum(counts)
    course = course_of(trace)
    assert [step.experiment for step in course.steps] == [
        number for number, count in enumerate(counts, 1) for _ in range(count)
    ]
    assert len(course.representative.signature[Phase.BACKWARD]) < 4


def test_models_that_read_each_other_share_a_step_however_often_each_steps():
    def script() -> None:
        generator, critic = layer(), layer()
        of_generator, of_critic = (
            torch.optim.SGD(m.parameters(), lr=0.1) for m in (generator, critic)
        )
        for _ in range(3):
            for _ in range(2):
                critic(generator(torch.ones(1, 4, device="cuda")).detach()).sum().backward()
                of_critic.step()
            for _ in range(2):
                critic(generator(torch.ones(1, 4, device="cuda"))).sum().backward()
                of_generator.step()

    assert len(traced(script, steps=None).step_ends) == 5  # c c g, g c, c g, g c, c g


def test_an_optimizer_that_is_gone_is_not_waited_for():
    def script() -> None:
        model = layer()
        torch.optim.SGD(model.parameters(), lr=0.1)  # made and thrown away
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            learn(model, optimizer)

    assert len(traced(script).step_ends) == 2


def test_gradient_accumulation_is_one_step():
    def script() -> None:
        model = layer()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            for _ in range(4):
                model(torch.ones(1, 4, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    ledger = accounted(script)
    assert len(ledger.trace.step_ends) == 2
    assert ledger.total.flops_forward >= 4 * 2 * 16
    assert ledger.total.flops_matmul == 4 * 2 * 2 * 16


def test_a_scaler_and_a_scheduler_change_nothing_about_steps():
    def script() -> None:
        model = layer()
        optimizer = torch.optim.AdamW(model.parameters())
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
        for _ in range(3):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(torch.ones(1, 4, device="cuda")).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()

    assert len(traced(script).step_ends) == 3


def test_a_step_that_a_scaler_skips_is_one_beside_those_asked_for():
    """Two gradients overflow: the optimizer's first step is the third of the script."""

    def script() -> None:
        weight = nn.Parameter(torch.zeros(2, device="cuda"))
        optimizer = torch.optim.Adam([weight])
        scaler = torch.amp.GradScaler("cuda", init_scale=8.0)
        for step in range(9):
            factor = float("inf") if step < 2 else 1.0
            scaler.scale((weight * factor).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    trace = traced(script, steps=2)
    assert len(trace.step_ends) == 4


def test_a_step_with_a_closure():
    def script() -> None:
        model = layer()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(torch.ones(1, 4, device="cuda")).sum()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)  # type: ignore[arg-type]

    trace = traced(script)
    assert len(trace.step_ends) == 2
    forward = [op.phase for op in ops(trace, "aten.mm")]
    assert forward == [Phase.FORWARD, Phase.BACKWARD] * 2


def test_a_users_own_optimizer_class():
    class Plain(torch.optim.Optimizer):
        def __init__(self, parameters) -> None:
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(parameter.grad, alpha=-group["lr"])

    def script() -> None:
        model = layer()
        optimizer = Plain(model.parameters())
        for _ in range(2):
            learn(model, optimizer)

    trace = traced(script)
    assert len(trace.step_ends) == 2
    assert [op.phase for op in ops(trace, "aten.add_")] == [Phase.OPTIMIZER] * 2


def test_an_update_by_hand_is_of_the_optimizers_phase():
    def script() -> None:
        w = torch.ones(4, device="cuda", requires_grad=True)
        (w * 3).sum().backward()
        with torch.no_grad():
            w -= 0.1 * w.grad

    trace = traced(script)
    assert trace.step_ends == (trace.end,)
    assert [op.phase for op in ops(trace, "aten.sub_")] == [Phase.OPTIMIZER]
    assert [op.phase for op in ops(trace, "aten.mul")] == [
        Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER,
    ]  # fmt: skip


def test_optimizers_in_backward():
    """A step for each parameter as soon as its gradient is there."""

    def script() -> None:
        model = nn.Sequential(layer(), layer())
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

        def update(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        for _ in range(3):
            model(torch.ones(1, 4, device="cuda")).sum().backward()

    trace = traced(script)
    assert len(trace.step_ends) == 3
    updates = [op for op in ops(trace) if op.call.name.startswith("aten._foreach_add_")]
    assert len(updates) == 6
    assert {op.phase for op in updates} == {Phase.OPTIMIZER}


def test_zero_grad_and_clipping_are_of_the_optimizers_phase():
    def script() -> None:
        model = layer()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(1, 4, device="cuda")).sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

    trace = traced(script)
    clipped = [op for op in ops(trace) if "norm" in op.call.name]
    assert clipped
    assert {op.phase for op in clipped} == {Phase.OPTIMIZER}

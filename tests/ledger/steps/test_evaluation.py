"""Forward work that no backward pass follows is evaluation, and in no step."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from torch import Tensor, nn

import torchtally
from tests.strategies import traces
from tests.traces import traced
from torchtally.ledger import Ledger
from torchtally.ledger.steps import course_of
from torchtally.trace import Op, Phase, Trace
from torchtally.views.throughput import tokens_of

pytestmark = pytest.mark.one_case_in(3)

B, D = 8, 16
PRODUCT = 2 * B * D * D
"""FLOPs of one linear layer on a batch."""


def accounted(script: Callable[[], None], **options: object) -> Ledger:
    ledger = torchtally.account(
        traced(script),
        roofline=torchtally.roofline("H100-SXM"),
        **options,  # type: ignore[arg-type]
    )
    ledger.check()
    return ledger


def products(ledger: Ledger, phase: Phase) -> int:
    """FLOPs of the products of a phase, in the period that is reported."""
    return sum(
        entry.cost.flops
        for entry in ledger.reported
        if entry.op.phase is phase and entry.kind.is_matmul
    )


def batch() -> Tensor:
    return torch.ones(B, D, device="cuda")


class Training:
    """A model of two layers; `step` is one training step of it."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, x: Tensor) -> Tensor:
        y: Tensor = self.model(x)
        y.sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return y


def plain() -> None:
    training = Training()
    for _ in range(3):
        training.step(batch())


def evaluated_without_gradients() -> None:
    training = Training()
    for _ in range(3):
        training.step(batch())
        with torch.no_grad():
            training.model(batch())


def evaluated_first() -> None:
    training = Training()
    for _ in range(3):
        with torch.no_grad():
            training.model(batch())
        training.step(batch())


def evaluated_with_gradients() -> None:
    """Without no_grad, as many do."""
    training = Training()
    for _ in range(3):
        training.model(batch())
        training.step(batch())


def evaluated_on_the_training_batch() -> None:
    """The same tensor goes into both."""
    training, x = Training(), batch()
    for _ in range(3):
        with torch.no_grad():
            training.model(x)
        training.step(x)


def sampled() -> None:
    """What is sampled is put in again."""
    training = Training()
    for _ in range(3):
        training.step(batch())
        x = batch()
        with torch.no_grad():
            x = training.model(x)


def evaluated_into_a_list() -> None:
    """Results that are kept do not make their evaluation part of the training."""
    training, kept = Training(), []
    for _ in range(3):
        training.step(batch())
        with torch.no_grad():
            kept.append(training.model(batch()).sum())


EVALUATED = (
    evaluated_without_gradients,
    evaluated_first,
    evaluated_with_gradients,
    evaluated_on_the_training_batch,
    sampled,
    evaluated_into_a_list,
)


@pytest.mark.parametrize("script", [plain, *EVALUATED])
def test_a_step_is_the_same_with_and_without_evaluation(script: Callable[[], None]) -> None:
    ledger, alone = accounted(script), accounted(plain)
    assert products(ledger, Phase.FORWARD) == 2 * PRODUCT
    assert products(ledger, Phase.BACKWARD) == 3 * PRODUCT  # the first layer's input has none
    assert products(ledger, Phase.EVALUATION) == 0
    assert ledger.total.flops_evaluation == 0
    assert ledger.total.flops_matmul == alone.total.flops_matmul
    assert ledger.period == "steady-state step 3"


@pytest.mark.parametrize("script", EVALUATED)
def test_evaluation_is_a_phase_of_the_run(script: Callable[[], None]) -> None:
    ledger = accounted(script, step="all")
    assert products(ledger, Phase.EVALUATION) == 3 * 2 * PRODUCT
    assert products(ledger, Phase.FORWARD) == 3 * 2 * PRODUCT
    assert products(ledger, Phase.BACKWARD) == 3 * 3 * PRODUCT


def test_the_step_takes_the_time_that_it_takes_alone() -> None:
    alone = accounted(plain).step_s
    assert accounted(evaluated_without_gradients).step_s == pytest.approx(alone, rel=0.1)


def test_what_reads_the_batch_of_training_is_not_evaluation() -> None:
    """Accuracy and a printed loss belong to the step, also after the optimizer's step."""

    def script() -> None:
        training = Training()
        for _ in range(3):
            y = training.step(batch())
            target = torch.zeros(B, dtype=torch.int64, device="cuda")
            (y.argmax(1) == target).sum().item()

    trace = course_of(traced(script)).trace
    kinds = {op.phase for op in trace.ops if op.clock < trace.step_ends[-1]}
    assert Phase.EVALUATION not in kinds


def test_a_frozen_teacher_that_the_loss_reads_is_trained_with() -> None:
    def script() -> None:
        training, teacher = Training(), nn.Linear(D, D, bias=False).cuda()
        for _ in range(3):
            x = batch()
            with torch.no_grad():
                target = teacher(x)
            (training.model(x) - target).square().sum().backward()
            training.optimizer.step()
            training.optimizer.zero_grad()

    assert products(accounted(script), Phase.FORWARD) == 3 * PRODUCT


def test_features_that_a_loss_does_not_take_are_of_the_forward_pass() -> None:
    """A perceptual loss: both layers see the target, the loss takes the first one's."""

    def script() -> None:
        training = Training()
        lower, upper = (nn.Linear(D, D, bias=False).cuda().requires_grad_(False) for _ in "12")
        for _ in range(3):
            y, target = lower(training.model(batch())), lower(batch())
            upper(target)
            (y - target).square().sum().backward()
            training.optimizer.step()
            training.optimizer.zero_grad()

    assert products(accounted(script), Phase.FORWARD) == 5 * PRODUCT


def test_an_average_of_the_weights_is_not_evaluation() -> None:
    def script() -> None:
        training = Training()
        average = [parameter.detach().clone() for parameter in training.model.parameters()]
        for _ in range(3):
            training.step(batch())
            with torch.no_grad():
                for mean, parameter in zip(average, training.model.parameters(), strict=True):
                    mean.lerp_(parameter, 0.1)

    trace = course_of(traced(script)).trace
    assert {op.phase for op in calls(trace, "aten.lerp_")} <= {Phase.FORWARD, Phase.OPTIMIZER}


def test_a_batch_that_is_loaded_early_is_not_evaluation() -> None:
    """The next batch goes to the device while this one is trained on."""

    def script() -> None:
        training, x = Training(), torch.ones(B, D).cuda()
        for _ in range(3):
            y = training.model(x)
            x = torch.ones(B, D).cuda()
            y.sum().backward()
            training.optimizer.step()
            training.optimizer.zero_grad()

    trace = course_of(traced(script)).trace
    assert {op.phase for op in calls(trace, "aten._to_copy")} == {Phase.FORWARD}


def test_a_check_of_the_batch_is_not_evaluation() -> None:
    """transformers looks whether position ids begin anew, and drops the answer."""

    def script() -> None:
        training = Training()
        for _ in range(3):
            x = torch.ones(B, D, device="cuda") * 2
            (x.diff() != 1).any()
            training.step(x)

    trace = course_of(traced(script)).trace
    assert {op.phase for op in calls(trace, "aten.any")} == {Phase.FORWARD}


def test_a_checkpointed_forward_is_not_evaluation() -> None:
    """Its first run builds no graph: the backward pass reads its input and runs it again."""

    def script() -> None:
        training = Training()
        for _ in range(3):
            y = training.model[0](batch())
            y = torch.utils.checkpoint.checkpoint(training.model[1], y, use_reentrant=True)
            y.square().sum().backward()
            training.optimizer.step()
            training.optimizer.zero_grad()

    ledger = accounted(script)
    assert products(ledger, Phase.FORWARD) == 2 * PRODUCT
    assert products(ledger, Phase.RECOMPUTE) == PRODUCT


@given(trace=traces())
def test_evaluation_that_was_told_apart_stays(trace: Trace) -> None:
    """Accounting a ledger's own trace again changes nothing, and only forward work changes."""
    once = course_of(trace).trace
    assert course_of(once).trace == once
    for before, after in zip(trace.ops, once.ops, strict=True):
        assert before.phase is after.phase or before.phase is Phase.FORWARD


def test_without_a_step_a_forward_pass_is_one() -> None:
    def script() -> None:
        Training().model(batch())

    assert products(accounted(script), Phase.FORWARD) == 2 * PRODUCT


def test_evaluation_is_not_in_the_tokens_of_a_step() -> None:
    def script() -> None:
        model = nn.Sequential(nn.Embedding(D, D), nn.Linear(D, D)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ids = torch.zeros(B, 4, dtype=torch.int64, device="cuda")
        for _ in range(3):
            with torch.no_grad():
                for _ in range(10):
                    model(ids)
            model(ids).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    batch = tokens_of(accounted(script))
    assert batch is not None
    assert batch.size == B * 4


def calls(trace: Trace, name: str) -> list[Op]:
    return [op for op in trace.ops if trace.calls[op.call].name == name]

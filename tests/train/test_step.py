"""One step: micro-batches that add up, and bad steps left out."""

import json
import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtally
from tests.train.steppers import (
    ADAMW,
    CONFIG,
    ROWS,
    SEQUENCE,
    are_equal,
    everything,
    language_loss,
    square_loss,
    stepper,
    tokens,
)
from tests.train.training import teacher
from torchtally import run
from torchtally.checkpoints.shards import global_norm
from torchtally.errors import UsageError
from torchtally.train.models.cruncher import Cruncher
from torchtally.train.models.transformer import Transformer
from torchtally.train.optimizers.build import build
from torchtally.train.outcome import NonFiniteError, Outcome, SpikeError
from torchtally.train.precision import precision
from torchtally.train.spikes import SpikeDetector
from torchtally.train.step import Stepper
from torchtally.train.trainer import rehearse

pytestmark = pytest.mark.one_case_in(2)

LEARNING_STEPS = 12


# Micro-batches


def test_one_micro_batch_is_the_plain_step_bit_for_bit() -> None:
    mine = stepper(clip_norm=1.0)
    torch.manual_seed(0)
    model = Transformer(CONFIG)
    optimizer = build(model, ADAMW)
    for step in range(3):
        result = mine(tokens(step), step=step)
        optimizer.zero_grad()
        loss = model.loss(tokens(step)[:, :-1], tokens(step)[:, 1:])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        assert (result.loss, result.grad_norm) == (loss.item(), norm.item())
    for expected, actual in zip(model.parameters(), mine.model.parameters(), strict=True):
        assert torch.equal(expected, actual)


@pytest.mark.parametrize(("micro_batch", "micro_batches"), [(1, 6), (2, 3), (4, 2), (5, 2), (9, 1)])
@pytest.mark.parametrize("are_ignored", [False, True])
def test_micro_batches_add_up_to_the_batch(
    micro_batch: int, micro_batches: int, are_ignored: bool
) -> None:
    """Also where rows have unlike many targets that count, and one has none."""
    inputs, targets = tokens()[:, :-1], tokens()[:, 1:].clone()
    if are_ignored:
        for row in range(ROWS):
            targets[row, : 3 * row + 1] = -100
    whole, parts = stepper(), stepper(micro_batch)
    expected, actual = (train_step((inputs, targets), step=0) for train_step in (whole, parts))
    assert actual.loss == pytest.approx(expected.loss, rel=1e-6)
    assert actual.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
    assert actual.micro_batches == micro_batches
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-7)


def test_weights_by_rows_alone_would_be_wrong() -> None:
    """The check above can fail: the plain mean of means is another number."""
    inputs, targets = tokens()[:, :-1], tokens()[:, 1:].clone()
    targets[:3, :10] = -100
    train_step = stepper()
    plain = (
        sum(train_step.model.loss(inputs[part], targets[part]) for part in (slice(3), slice(3, 6)))
        / 2
    )
    assert train_step((inputs, targets), step=0).loss != pytest.approx(plain.item(), rel=1e-4)


@pytest.mark.parametrize("micro_batch", [1, 3, 4])
def test_targets_that_are_numbers(micro_batch: int) -> None:
    x, y = torch.randn(ROWS, 8), torch.randn(ROWS)
    train_step = stepper(micro_batch, model=Cruncher(8, 2), loss=square_loss)
    expected = square_loss(train_step.model, x, y).item()
    assert train_step((x, y), step=0).loss == pytest.approx(expected, rel=1e-6)


@pytest.fixture(scope="module")
def float32_losses() -> list[float]:
    train_step = stepper(4, clip_norm=1.0)
    return [train_step(tokens(), step=step).loss for step in range(LEARNING_STEPS)]


@pytest.mark.parametrize("name", ["bf16", "fp16", "bf16-master", "pure-bf16"])
def test_every_precision_learns(name: str, float32_losses: list[float]) -> None:
    train_step = stepper(4, name=name, clip_norm=1.0)
    losses = [train_step(tokens(), step=step).loss for step in range(LEARNING_STEPS)]
    expected = float32_losses
    assert losses[0] == pytest.approx(expected[0], rel=0.01)
    assert losses[-1] == pytest.approx(expected[-1], rel=0.03)
    assert losses[-1] < losses[0] - 0.1


def test_no_host_wait_for_each_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One read a step, however many micro-batches."""
    train_step = stepper(1, clip_norm=1.0)
    train_step(tokens(), step=0)
    reads: list[str] = []
    for name in ("item", "tolist", "__bool__", "__float__"):
        native = getattr(Tensor, name)

        def read(self: Tensor, native: Any = native, name: str = name) -> Any:
            # The optimizer's step counters are on the host.
            if self.numel() > 1 or name != "__float__":
                reads.append(name)
            return native(self)

        monkeypatch.setattr(Tensor, name, read)
    train_step.optimizer.step = lambda: None  # type: ignore[method-assign]
    train_step(tokens(), step=1)
    assert reads == ["tolist"]


# Steps that must not be taken


class Poisoned(nn.Module):
    """A linear layer whose loss and gradient are as asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum(-1) * self.factor


BATCH = (torch.ones(4, 4), torch.zeros(4))


def poisoned(**options: Any) -> Stepper:
    return stepper(2, model=Poisoned(), loss=square_loss, **options)


@pytest.mark.parametrize("factor", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("name", ["fp32", "fp16"])
def test_a_step_that_is_not_finite_is_skipped_untouched(factor: float, name: str) -> None:
    train_step = poisoned(on_nonfinite="skip", clip_norm=1.0, name=name)
    train_step(BATCH, step=0)
    before, scale = everything(train_step), train_step.state_dict()["scaler"]
    train_step.model.factor = factor
    result = train_step(BATCH, step=1)
    assert (result.is_skipped, result.outcome) == (True, Outcome.NONFINITE)
    assert are_equal(before, everything(train_step))
    assert train_step.state_dict()["scaler"] == scale
    assert train_step.guard.skipped_in_a_row == 1
    train_step.model.factor = 1.0
    assert not train_step(BATCH, step=2).is_skipped
    assert train_step.guard.skipped_in_a_row == 0
    assert not are_equal(before, everything(train_step))


def test_a_gradient_that_is_not_finite_is_found_beside_a_finite_loss() -> None:
    """√0 is 0, and its slope infinite."""
    train_step = stepper(
        2, model=Poisoned(), on_nonfinite="skip",
        loss=lambda model, x, y: (model.weight - 1).abs().sqrt().sum() + square_loss(model, x, y),
    )  # fmt: skip
    result = train_step(BATCH, step=0)
    assert math.isfinite(result.loss)
    assert not math.isfinite(result.grad_norm)
    assert result.outcome is Outcome.NONFINITE


def test_stopping_names_step_and_rows_and_keeps_the_batch() -> None:
    train_step = poisoned()
    inputs = torch.ones(4, 4)
    inputs[3, 0] = math.nan
    before = everything(train_step)
    with pytest.raises(NonFiniteError, match=r"^Step 17: the loss is nan.* in rows 2 to 3 of 4"):
        train_step((inputs, torch.zeros(4)), step=17)
    assert are_equal(before, everything(train_step))
    with pytest.raises(NonFiniteError) as caught:
        train_step((inputs, torch.zeros(4)), step=18)
    assert caught.value.step == 18
    assert torch.equal(caught.value.batch[0].isnan(), inputs.isnan())


def test_weights_that_were_bad_before_are_named() -> None:
    train_step = poisoned()
    train_step.model.weight.data[0] = math.inf
    with pytest.raises(
        NonFiniteError, match="weights were NaN or inf before the step, the first is 'weight'"
    ):
        train_step(BATCH, step=0)


def test_a_batch_without_any_target_is_no_step() -> None:
    inputs = tokens()[:, :-1]
    with pytest.raises(NonFiniteError):
        stepper(2)((inputs, torch.full_like(inputs, -100)), step=0)


def test_skips_in_a_row_are_bounded() -> None:
    train_step = poisoned(on_nonfinite="skip", most_skipped=2)
    train_step.model.factor = math.nan
    assert [train_step(BATCH, step=step).is_skipped for step in range(2)] == [True, True]
    with pytest.raises(NonFiniteError, match="Step 2 after 2 skipped steps in a row"):
        train_step(BATCH, step=2)


def test_the_loss_scale_is_looked_for_and_counts_for_nothing() -> None:
    """A slope of 2**-6 * 60000 overflows float16 from a scale of 2**7 on: down from 2**16."""

    class Steep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return model(x).float().mean() * 2.0**10

    train_step = stepper(
        1, model=Steep(), loss=loss, name="fp16", most_skipped=0, on_nonfinite="stop",
    )  # fmt: skip
    before = everything(train_step)
    batch = (torch.ones(1, 1), torch.zeros(1))
    results = [train_step(batch, step=0)]
    while results[-1].is_skipped:
        assert results[-1].outcome is Outcome.SCALE_LOWERED
        assert are_equal(before, everything(train_step))
        results.append(train_step(batch, step=0))
    assert [result.loss_scale for result in results] == [2.0**n for n in range(16, 4, -1)]
    assert results[-1].outcome is Outcome.UPDATED


def test_the_loss_scale_has_a_floor() -> None:
    """Gradients that overflow at a scale of one are not the scale's fault."""
    train_step = stepper(
        2, model=Poisoned(), name="fp16", on_nonfinite="skip",
        loss=lambda model, x, y: (model.weight - 1).abs().sqrt().sum(),
    )  # fmt: skip
    outcomes = [train_step(BATCH, step=step).outcome for step in range(18)]
    assert outcomes == [Outcome.SCALE_LOWERED] * 16 + [Outcome.NONFINITE] * 2
    assert train_step.state_dict()["scaler"]["scale"] == 1.0


@pytest.mark.parametrize(
    ("policy", "outcome"), [("note", Outcome.UPDATED), ("skip", Outcome.SPIKE)]
)
def test_spikes_are_treated_as_asked(policy: Any, outcome: Outcome) -> None:
    train_step = poisoned(spikes=SpikeDetector(policy, warmup_steps=20))
    for step in range(20):
        assert not train_step(BATCH, step=step).is_spike
    before = everything(train_step)
    train_step.model.factor = 10.0
    result = train_step(BATCH, step=20)
    assert result.is_spike
    assert result.outcome is outcome
    assert are_equal(before, everything(train_step)) == (policy == "skip")


def test_a_spike_can_stop_the_run() -> None:
    train_step = poisoned(spikes=SpikeDetector("stop", warmup_steps=20))
    for step in range(20):
        train_step(BATCH, step=step)
    train_step.model.factor = 10.0
    with pytest.raises(SpikeError, match="Step 20: the loss spiked to"):
        train_step(BATCH, step=20)


def test_going_on_from_a_state_dict_is_going_on() -> None:
    options: dict[str, Any] = {"name": "fp16", "on_nonfinite": "skip"}
    whole = stepper(4, spikes=SpikeDetector("skip", warmup_steps=4, least_steps=4), **options)
    for step in range(6):
        whole(tokens(step), step=step)
    saved = json.loads(json.dumps(whole.state_dict()))
    resumed = stepper(4, spikes=SpikeDetector("skip", warmup_steps=4, least_steps=4), **options)
    resumed.load_state_dict(saved)
    assert resumed.state_dict() == whole.state_dict()
    resumed.model.load_state_dict(whole.model.state_dict())
    resumed.optimizer.load_state_dict(deepcopy(whole.optimizer.state_dict()))
    for step in range(6, 9):
        assert whole(tokens(step), step=step) == resumed(tokens(step), step=step)


# On a GPU


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16-master", "pure-bf16"])
def test_a_step_runs_on_the_simulated_gpu(name: str) -> None:
    """Two steps are two steps to a trace, and both update."""
    results = []

    def script() -> None:
        how = precision(name)
        model = how.prepare(Transformer(CONFIG), "cuda")
        train_step = Stepper(
            model, language_loss, how.wrap(build(model, ADAMW)), precision=how, device="cuda",
            micro_batch=4, clip_norm=1.0,
        )  # fmt: skip
        for step in range(2):
            batch = torch.randint(0, 256, (ROWS, SEQUENCE + 1), device="cuda")
            results.append(train_step(batch, step=step))

    trace = torchtally.run(script, gpu="H100-SXM")
    assert [step_result.outcome for step_result in results] == [Outcome.UPDATED] * 2
    assert len(trace.step_ends) == 2


# What is asked for wrongly


def test_rows_without_targets_are_refused() -> None:
    with pytest.raises(UsageError, match="got 6 rows and 5 targets"):
        stepper()((tokens(), tokens()[:5]), step=0)
    with pytest.raises(UsageError, match="0 rows"):
        stepper()(tokens()[:0], step=0)


def test_memory_that_is_short_after_unscaling_is_no_other_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """float16's scaler remembers that gradients are unscaled, and the attempt is repeated."""
    train_step = stepper(micro_batch=ROWS, name="fp16")
    calls = iter(range(9))

    def short(tensors: Any) -> Tensor:
        if next(calls) == 0:
            raise torch.OutOfMemoryError("no memory for the norm")
        return global_norm(tensors)

    monkeypatch.setattr("torchtally.train.step.global_norm", short)
    result = train_step(tokens(), step=0)
    assert result.outcome is Outcome.UPDATED
    assert result.micro_batch == ROWS // 2


@pytest.mark.parametrize("name", ["fp32", "fp16"])
def test_a_rehearsal_takes_every_step(name: str, tmp_path: Path) -> None:
    """Its numbers mean nothing: what they overflow to is no reason to plan without an update."""
    for lr in (1e-2, 1e30):
        config = teacher(
            tmp_path, precision=name, compile=False, optimizer={"name": "adagrad", "lr": lr}
        )
        trace = run(lambda: rehearse(config), gpu="H100-SXM", steps=2)  # noqa: B023
        assert len(trace.step_ends) == 2

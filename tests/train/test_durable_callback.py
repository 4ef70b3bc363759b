"""The Trainer of transformers, interrupted and resumed, ends as an undisturbed one: bit for bit."""

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import torchtally
from tests.train.forked import forked
from torchtally.checkpoints.folder import Checkpoints
from torchtally.errors import UsageError

pytestmark = pytest.mark.one_case_in(2)

KILLS = int(os.environ.get("TALLY_KILLS", "0"))
STEPS = 7
"""Of three epochs of five micro-batches: three updates each of two, two and one."""


class Interrupting(TrainerCallback):
    """Does something when a step has begun, and those before may be saved."""

    def __init__(self, step: int, what: Any) -> None:
        self.step, self.what = step, what

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            self.what()


class Interruption(Exception):  # noqa: N818
    pass


def interrupt() -> None:
    raise Interruption


def trained(folder: Path, step: int = -1, what: Any = interrupt) -> dict[str, Any]:
    """The end of a training from where its folder says: weights, and the log."""
    trainer, callback = trainer_in(folder, step, what)
    trainer.train(resume_from_checkpoint=callback.checkpoint())
    losses = [record["loss"] for record in trainer.state.log_history if "loss" in record]
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    return {"losses": losses, **weights}


def trainer_in(folder: Path, step: int = -1, what: Any = interrupt, **changes: Any) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=31, n_positions=8, n_embd=16, n_layer=1, n_head=2)
    model: Any = GPT2LMHeadModel(config)
    rows = [torch.randint(31, (8,)) for _ in range(10)]
    arguments = TrainingArguments(
        output_dir=str(folder / "out"), max_steps=STEPS, per_device_train_batch_size=2,
        gradient_accumulation_steps=2, learning_rate=1e-2, warmup_steps=2, logging_steps=1,
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    for name, value in changes.items():
        setattr(arguments, name, value)
    callback: Any = torchtally.DurableCallback(folder, every=1, in_background=False)
    trainer = Trainer(
        model, arguments, callbacks=[callback, Interrupting(step, what)],
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
    )  # fmt: skip
    return trainer, callback


def assert_equal(actual: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert actual.keys() == wanted.keys()
    for name, value in wanted.items():
        is_equal = torch.equal(actual[name], value) if isinstance(value, Tensor) else None
        assert is_equal or actual[name] == value, name


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return trained(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("steps", [(1, 3, 4), (6,)])
def test_interrupted_in_an_epoch_and_between_two(
    steps: tuple[int, ...], tmp_path: Path, whole: dict[str, Any]
) -> None:
    for step in steps:
        with pytest.raises(Interruption):
            trained(tmp_path, step)
        assert Checkpoints(tmp_path).steps()[0] == step
    assert_equal(trained(tmp_path), whole)
    assert len(whole["losses"]) == STEPS


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.skipif(not KILLS, reason="each start of transformers takes seconds: set TALLY_KILLS")
def test_killed(tmp_path: Path, whole: dict[str, Any]) -> None:
    draw = random.Random(0)
    for _ in range(KILLS):
        run = tmp_path / str(draw.random())
        process = forked().Process(target=trained, args=(run, draw.randrange(1, STEPS), die))
        process.start()
        process.join(120)
        assert process.exitcode == -signal.SIGKILL
        assert_equal(trained(run), whole)


def test_a_checkpoint_that_the_trainer_does_not_resume_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(Interruption):
        trained(tmp_path, 2)
    for changes, error in (
        ({}, "is of step 2, but the Trainer starts from step 0"),
        ({"fp16": True}, "fp16: callbacks are not given"),
    ):
        trainer, _ = trainer_in(tmp_path, **changes)
        with pytest.raises(UsageError, match=error):
            trainer.train()
    assert Checkpoints(tmp_path).steps() == [2, 1]

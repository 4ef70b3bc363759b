"""Whole trainings: they learn, are the same twice, hold what was planned, and write it all down."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import torchtally
from tests.train.test_what_was_trained import train
from tests.train.training import TINY, language, run, teacher
from torchtally import account
from torchtally.checkpoints.folder import Checkpoints
from torchtally.errors import UsageError
from torchtally.plan.recipes import recipe
from torchtally.trace import Role, Trace
from torchtally.train.config import TrainConfig
from torchtally.train.logs import names
from torchtally.train.logs.jsonl import read_log
from torchtally.train.outcome import NonFiniteError
from torchtally.train.plan import states_of, step_flops
from torchtally.train.trainer import rehearse, trainer_of
from torchtally.views.utilisation import model_flops

pytestmark = pytest.mark.one_case_in(3)


@pytest.mark.thorough
def test_it_learns(tmp_path: Path) -> None:
    config = language(tmp_path, steps=60, optimizer={"lr": 1e-2})
    history, witness = run(config)
    losses = [loss for _, loss in history.training]
    assert losses[0] == pytest.approx(math.log(257), abs=0.5)
    assert losses[-1] < losses[0] / 2
    assert witness.evaluations[-1] < losses[0] / 2


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_same_seed_gives_the_same_losses_bit_for_bit(tmp_path: Path, dropout: float) -> None:
    config = language(tmp_path, model={**TINY, "dropout": dropout})
    first, second = (run(config)[0] for _ in range(2))
    assert first.training == second.training
    assert first.validation == second.validation
    other, _ = run(language(tmp_path, model={**TINY, "dropout": dropout}, seed=2))
    assert other.training != first.training


@pytest.mark.thorough
def test_micro_batches_change_nothing_but_the_rounding(tmp_path: Path) -> None:
    whole, _ = run(language(tmp_path))
    cut, _ = run(language(tmp_path, micro_batch=1))
    for (_, a), (_, b) in zip(whole.training, cut.training, strict=True):
        assert a == pytest.approx(b, rel=1e-5)


@pytest.mark.thorough
def test_evaluation_and_samples_change_nothing(tmp_path: Path) -> None:
    plain, _ = run(language(tmp_path))
    config = language(
        tmp_path,
        evaluation={"every": 1, "batches": 2},
        sampling={"every": 2, "tokens": 5, "prompt": "line "},
    )
    watched, witness = run(config)
    assert watched.training == plain.training
    assert len(witness.evaluations) == 7  # the first before any step
    assert abs(witness.evaluations[0] - math.log(257)) < 0.3
    assert len(witness.samples) == 3
    assert all(sample.startswith("line ") for sample in witness.samples)


@pytest.mark.thorough
def test_it_ends_where_the_validation_loss_falls_no_more(tmp_path: Path) -> None:
    """Momentum carries the weights past the minimum; two evaluations later the training ends."""
    config = teacher(
        tmp_path, steps=40, optimizer={"name": "momentum", "lr": 0.05, "momentum": 0.95},
        evaluation={"every": 1, "patience": 2, "batches": 4},
        checkpoint={"keep_best": True, "keep_last": 1},
    )  # fmt: skip
    notes = train(config)
    losses = dict(read_log(config.log.folder).series(names.EVAL_LOSS))
    best = min(losses, key=lambda step: losses[step])
    assert best > 1
    assert [*losses] == [*range(best + 3)]
    assert Checkpoints(config.log.folder).steps() == [best + 2, best]
    (note,) = notes
    assert note == (
        f"ended after step {best + 2}: 2 evaluations without a lower validation loss than "
        f"{losses[best]:.4g}, of step {best}"
    )
    assert train(config, resumes=True) == [f"resuming from step {best + 2}", note]


def final_loss(tmp_path: Path, lr: float) -> float:
    config = teacher(tmp_path, steps=200, optimizer={"name": "adagrad", "lr": lr})
    return run(config)[0].validation[-1][1]


@pytest.mark.thorough
def test_the_teachers_learning_rates(tmp_path: Path) -> None:
    assert final_loss(tmp_path, 0.1) < 0.95 * final_loss(tmp_path, 0.01)


def test_a_run_is_written_down(tmp_path: Path) -> None:
    config = language(tmp_path)
    history, witness = run(config)
    log = read_log(Path(config.log.folder))
    assert list(log.series("train/loss")) == history.training
    assert log.series("train/num_input_tokens_seen")[-1] == (6, 6 * 4 * 32)
    assert log.series("eval/loss") == ((6, witness.evaluations[-1]),)
    assert log.run["config"]["steps"] == 6


# The plan ------------------------------------------------------------------------------------


def traced(config: TrainConfig) -> Trace:
    return torchtally.run(lambda: rehearse(config), gpu="H100-SXM", steps=2)


def bytes_of(run: Trace, role: Role) -> int:
    """Of all storages of this role that are there after the last step."""
    end = run.step_ends[-1] - 1
    return sum(
        storage.requested_bytes
        for storage in run.storages
        if storage.role is role
        and storage.device != "cpu"
        and storage.born <= end
        and not (storage.died or end) < end
    )


PLANS: dict[str, tuple[dict[str, Any], str]] = {
    "adamw": ({"precision": "fp32"}, "fp32"),
    "lion": ({"precision": "fp32", "optimizer": {"name": "lion"}}, "fp32"),
    "momentum": ({"precision": "fp32", "optimizer": {"name": "momentum"}}, "fp32"),
    "adagrad, bf16": ({"precision": "bf16", "optimizer": {"name": "adagrad"}}, "amp"),
    "tied, with biases": (
        {"precision": "fp32", "model": {**TINY, "is_tied": True, "has_bias": True}},
        "fp32",
    ),
    "recomputed": ({"precision": "bf16", "model": {**TINY, "recompute": "full"}}, "amp"),
}


@pytest.mark.one_case_in(3)
@pytest.mark.thorough
@pytest.mark.parametrize("key", PLANS)
def test_the_plan_is_what_a_trace_of_the_training_holds(key: str, tmp_path: Path) -> None:
    """Parameters, gradients and optimizer state to the byte; model FLOPs to the last one."""
    changes, name = PLANS[key]
    config = language(tmp_path, compile=False, **changes)
    plan, recorded = states_of(config, recipe(name)), traced(config)
    assert bytes_of(recorded, Role.PARAMETER) == plan.parameters.value
    assert bytes_of(recorded, Role.GRADIENT) == plan.gradients.value
    counters = 4 * len(list(trainer_parameters(config)))
    assert bytes_of(recorded, Role.OPTIMIZER_STATE) in (
        plan.optimizer.value,
        plan.optimizer.value + counters,  # fused optimizers count steps on the device
    )
    ledger = account(recorded)
    assert model_flops(ledger.reported, ledger.convention) == step_flops(config)


def trainer_parameters(config: TrainConfig) -> Any:
    return trainer_of(config).model.parameters()


def test_the_plan_is_what_the_training_holds(tmp_path: Path) -> None:
    config = language(tmp_path)
    _, witness = run(config)
    held, plan = witness.records[-1].memory_bytes, states_of(config, recipe("fp32"))
    assert held["parameters"] == plan.parameters.value
    assert held["gradients"] == plan.gradients.value
    assert held["optimizer state"] == plan.optimizer.value


def test_a_wrong_plan_is_seen(tmp_path: Path) -> None:
    config = language(tmp_path)
    _, witness = run(config)
    other = states_of(language(tmp_path, model={**TINY, "ffn": 65}), recipe("fp32"))
    assert witness.records[-1].memory_bytes["parameters"] != other.parameters.value


def test_flops_of_a_step_are_those_of_its_tokens(tmp_path: Path) -> None:
    once, twice = (step_flops(language(tmp_path, batch=number)) for number in (4, 8))
    assert twice == 2 * once


# What goes wrong -----------------------------------------------------------------------------


def test_a_bad_file_is_refused_before_the_first_step(tmp_path: Path) -> None:
    bad = tmp_path / "train.bin"
    bad.write_bytes(b"\x01\x02\x03")
    config = language(tmp_path, data={"train": [str(bad)], "dtype": "uint16"})
    with pytest.raises(UsageError, match=r"train\.bin"):
        trainer_of(config)


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_its_log(tmp_path: Path) -> None:
    config = language(tmp_path, optimizer={"name": "sgd", "lr": 1e30}, clip_norm=None)
    with pytest.raises(NonFiniteError, match="bad-batch") as error:
        run(config)
    folder = Path(config.log.folder)
    assert len(read_log(folder).records) >= 1
    kept = load_file(folder / f"bad-batch-{error.value.step}.safetensors")
    assert torch.equal(kept["inputs"], error.value.batch[0])


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["fp32", "bf16-master", "pure-bf16"])
def test_numbers_that_are_lost_are_logged(precision: str, tmp_path: Path) -> None:
    """Of steps 1, 2 and 4, by parameter, and the training is the same. Updates rounded at random
    are not lost.
    """
    plain = language(tmp_path, steps=4, precision=precision)
    logged = {"folder": str(tmp_path / "watched"), "every": 1, "numbers_every": 2}
    watched = language(tmp_path, steps=4, precision=precision, log=logged)
    assert run(plain)[0].training == run(watched)[0].training
    log = read_log(watched.log.folder)
    assert [step for step, _ in log.series("numbers/fp16_underflow_share")] == [1, 2, 4]
    shares = log.series("numbers/lost_update_share")
    assert [step for step, _ in shares] == ([] if precision == "pure-bf16" else [1, 2, 4])
    assert all(0 < share < 1 for _, share in shares)
    assert log.series("numbers/fp16_underflow_share/embedding.weight")


def test_the_profilers_trace_is_kept(tmp_path: Path) -> None:
    config = language(tmp_path, profile={"first_step": 1, "steps": 1})
    run(config)
    assert (Path(config.log.folder) / "profile.json.gz").stat().st_size > 1000


def test_steps_that_are_no_numbers_can_be_skipped(tmp_path: Path) -> None:
    config = language(tmp_path)
    trainer = trainer_of(config)
    loss, calls = trainer.stepper.loss, iter(range(100))

    def broken(model: Any, inputs: Any, targets: Any) -> torch.Tensor:
        loss_now: torch.Tensor = loss(model, inputs, targets)
        return loss_now * (math.nan if next(calls) == 2 else 1.0)

    trainer.stepper.loss, trainer.stepper.guard.on_nonfinite = broken, "skip"
    _, witness = run(config, trainer)
    assert [record.skipped_steps for record in witness.records] == [0, 0, 1, 1, 1, 1]
    assert any("step 3" in note for note in witness.notes)


def test_sampling_needs_a_tokenizer(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "data"
    run(language(tmp_path, steps=1))
    shard = next(folder.glob("train-*.bin"))
    config = language(tmp_path, data={"train": [str(shard)]}, sampling={"tokens": 3})
    with pytest.raises(UsageError, match="tokenizer of the data is unknown"):
        run(config)

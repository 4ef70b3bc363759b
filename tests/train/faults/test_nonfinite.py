"""Numbers that are none: real overflows in whole trainings, by data, weights, learning rates."""

import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.train.training import language, run, teacher
from tests.warm import warm
from torchtally.cli import main
from torchtally.train.config import TrainConfig
from torchtally.train.logs import names
from torchtally.train.logs.jsonl import read_log
from torchtally.train.outcome import NonFiniteError
from torchtally.train.trainer import Trainer, trainer_of

CONFIG = """\
task = "teacher"
steps = 30
batch = 4
clip_norm = 1e30
device = "cpu"
[optimizer]
name = "sgd"
lr = {lr}
[learning_rate]
shape = "constant"
[log]
folder = "{folder}"
every = 1
"""


def written(folder: Path, lr: str) -> str:
    path = folder / "run.toml"
    path.write_text(CONFIG.format(lr=lr, folder=folder / "run"))
    return str(path)


def poisoned(trainer: Trainer, batches: range, value: float) -> Trainer:
    """The trainer of a teacher whose inputs have one such value in the batches of these steps."""
    native = trainer.task._rows  # type: ignore[attr-defined]

    def rows(source: Any, step: int, device: torch.device) -> tuple[Tensor, Tensor]:
        inputs, targets = native(source, step, device)
        if step in batches:
            inputs[-1, 3] = value
        return inputs, targets

    trainer.task._rows = rows  # type: ignore[attr-defined]
    return trainer


def weights_of(trainer: Trainer) -> list[Tensor]:
    state = [v for state in trainer.optimizer.state.values() for v in state.values()]
    return [parameter.detach().clone() for parameter in (*trainer.model.parameters(), *state)]


def before_step(trainer: Trainer, step: int) -> Callable[[], list[Tensor]]:
    """Weights and optimizer state as they were when this step began."""
    native, kept = trainer.step, []

    def watched(batch: Any) -> Any:
        if batch.step == step:
            kept.append(weights_of(trainer))
        return native(batch)

    trainer.step = watched  # type: ignore[method-assign]
    return lambda: kept[0]


# The command -----------------------------------------------------------------------------------


def test_a_learning_rate_that_is_too_large_ends_the_process_with_what_to_do(tmp_path: Path) -> None:
    """Exit code 4, no traceback; the log has every step before it, and the batch is kept."""
    program = "import sys; from torchtally.cli import main; sys.exit(main())"
    command = warm(program, "train", written(tmp_path, "1e4"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    folder = tmp_path / "run"
    assert done.returncode == 4
    assert "Traceback" not in done.stderr
    assert "Lower the learning rate" in done.stderr
    (dumped,) = folder.glob("bad-batch-*.safetensors")
    assert f"Its batch is saved in {dumped}" in done.stderr
    step = int(dumped.stem.removeprefix("bad-batch-"))
    losses = read_log(folder).series(names.LOSS)
    assert [at for at, _ in losses] == list(range(1, step + 1))
    assert all(math.isfinite(loss) for _, loss in losses)
    assert step > 2


def test_a_learning_rate_beyond_all_measure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", written(tmp_path, "1e30")]) == 4
    assert "Lower the learning rate" in capfd.readouterr().err


def test_a_usual_learning_rate_does_not(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", written(tmp_path, "0.01")]) == 0
    assert "30 steps" in capfd.readouterr().out
    assert not list((tmp_path / "run").glob("bad-batch-*"))


# What it came from -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
def test_data_that_is_not_finite_stops_before_its_step(value: float, tmp_path: Path) -> None:
    """3e38 is finite; its square is not."""
    trainer = poisoned(trainer_of(teacher(tmp_path)), range(4, 5), value)
    before = before_step(trainer, 4)
    with pytest.raises(NonFiniteError, match=r"^Step 4: the loss is .* first in rows 0 to 3 of 4"):
        run(trainer.config, trainer)
    assert all(map(torch.equal, before(), weights_of(trainer)))
    folder = Path(trainer.config.log.folder)
    assert [at for at, _ in read_log(folder).series(names.LOSS)] == [1, 2, 3, 4]
    inputs = load_file(folder / "bad-batch-4.safetensors")["inputs"]
    assert torch.equal(inputs[-1, 3], torch.tensor(value)) or math.isnan(value)
    assert bool(inputs[-1, 3].isnan()) == math.isnan(value)


def test_a_weight_that_is_not_finite_is_named(tmp_path: Path) -> None:
    trainer = trainer_of(language(tmp_path))
    name, weight = list(trainer.model.named_parameters())[3]
    weight.data.view(-1)[7] = math.inf
    with pytest.raises(
        NonFiniteError, match=f"weights were NaN or inf before the step, the first is '{name}'"
    ):
        run(trainer.config, trainer)


def test_a_finite_update_that_overflows_is_seen_in_the_next_step(tmp_path: Path) -> None:
    """lr * gradient is beyond float32: the weights are what was NaN or inf, and it says so."""
    config = teacher(tmp_path, optimizer={"name": "sgd", "lr": 3e38})
    with pytest.raises(NonFiniteError, match=r"Step 1: .* weights were NaN or inf before the step"):
        run(config)


# What is done about it -------------------------------------------------------------------------


def skipping(folder: Path, **changes: Any) -> TrainConfig:
    return teacher(folder, on_nonfinite="skip", steps=20, **changes)


def test_steps_are_left_out_if_the_config_says_so(tmp_path: Path) -> None:
    """Flagged in log and notes, the weights as before, and the training goes on."""
    trainer = poisoned(trainer_of(skipping(tmp_path)), range(4, 7), math.nan)
    before, after = before_step(trainer, 4), before_step(trainer, 7)
    _, witness = run(trainer.config, trainer)
    assert all(map(torch.equal, before(), after()))
    assert [record.skipped_steps for record in witness.records] == [0] * 4 + [1, 2, 3] + [3] * 13
    assert sum("NaN or inf" in note for note in witness.notes) == 3
    losses = [math.isfinite(record.loss) for record in witness.records]
    assert losses == [at not in range(4, 7) for at in range(20)]
    assert len(read_log(Path(trainer.config.log.folder)).records) >= 20
    assert all(bool(weight.isfinite().all()) for weight in weights_of(trainer))


def test_but_not_for_ever(tmp_path: Path) -> None:
    """Eight in a row; the ninth ends the run."""
    trainer = poisoned(trainer_of(skipping(tmp_path)), range(3, 20), math.inf)
    with pytest.raises(NonFiniteError, match="Step 11 after 8 skipped steps in a row"):
        run(trainer.config, trainer)
    assert (Path(trainer.config.log.folder) / "bad-batch-11.safetensors").exists()


# float16, with torch.amp.GradScaler("cpu") -----------------------------------------------------


def test_gradients_that_overflow_float16_lower_the_scale_and_nothing_else(tmp_path: Path) -> None:
    """Scaled by 65536 a gradient above one is inf; the steps until it fits are left out."""
    config = teacher(tmp_path, precision="fp16", steps=20)
    trainer = trainer_of(config)
    assert trainer.stepper.guard.scaler is not None
    _, witness = run(config, trainer)
    lowered = [note for note in witness.notes if "loss scale lowered" in note]
    assert 1 <= len(lowered) < 16
    assert witness.records[-1].skipped_steps == len(lowered)
    assert trainer.stepper.guard.scaler.get_scale() == 2.0 ** (16 - len(lowered))
    assert all(bool(weight.isfinite().all()) for weight in weights_of(trainer))
    assert witness.records[-1].loss < witness.records[0].loss


def test_activations_that_overflow_float16_are_not_the_scales_fault(tmp_path: Path) -> None:
    """300 is finite in float16, its products of 1000 are not; in float32 they are."""
    changes = {"steps": 3, "clip_norm": 1.0}
    trainer = trainer_of(teacher(tmp_path, precision="fp16", **changes))
    native = trainer_of(teacher(tmp_path, precision="fp32", **changes))
    for training in (trainer, native):
        for weight in training.model.parameters():
            weight.data.fill_(1000.0)
        poisoned(training, range(3), 300.0)
    run(native.config, native)
    with pytest.raises(NonFiniteError, match=r"^Step 0: the loss is (inf|nan)"):
        run(trainer.config, trainer)
    assert trainer.stepper.guard.scaler is not None
    assert trainer.stepper.guard.scaler.get_scale() == 2.0**16

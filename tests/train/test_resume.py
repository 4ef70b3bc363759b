"""A training that was killed and resumed is the training that was not: bit for bit, at every step.

Processes are killed by SIGKILL. They are forked from one that has imported everything, so that a
run costs as much as its steps.
"""

import copy
import os
import random
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.train.forked import forked
from tests.train.training import TINY, Witness, language, teacher
from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.randomness import random_states, seed_all, set_random_states
from torchtally.checkpoints.saver import Saver
from torchtally.errors import CheckpointError, UsageError
from torchtally.train.config import TrainConfig
from torchtally.train.logs.jsonl import read_log
from torchtally.train.logs.log import RunHeader
from torchtally.train.logs.together import logs
from torchtally.train.loop import History, train
from torchtally.train.resuming import resume
from torchtally.train.trainer import Trainer, trainer_of

STEPS = 8
TIME_LIMIT_S = 120.0


@dataclass
class Killed(Witness):
    """Kills its own process after so many steps."""

    after: int | None = None

    def on_step(self, step: int, record: Any) -> None:
        if step == self.after:
            os.kill(os.getpid(), signal.SIGKILL)


def run(config: TrainConfig, *, kill_after: int | None = None) -> tuple[History, Trainer]:
    """A training from where its folder says to its end, or to its kill."""
    torch.set_num_threads(1)
    trainer = trainer_of(config)
    checkpoints = Checkpoints(config.log.folder)
    witness = Killed(after=kill_after)
    with checkpoints.lock():
        resumed = resume(trainer, checkpoints, witness.on_note)
        header = RunHeader(config=config.document())
        resumed_at = 0 if resumed is None else resumed + 1
        with logs(config.log.folder, header, resumed_at=resumed_at, say=witness.on_note) as log:
            checkpoints.clean()
            history = train(trainer, log, witness, checkpoints=checkpoints, resumed=resumed)
    return history, trainer


def run_and_be_killed(config: TrainConfig, after: int) -> None:
    run(config, kill_after=after)


def kill_after(config: TrainConfig, step: int) -> None:
    """Train in a process that a real SIGKILL ends after this step."""
    process = forked().Process(target=run_and_be_killed, args=(config, step), daemon=True)
    process.start()
    process.join(TIME_LIMIT_S)
    try:
        assert process.exitcode == -signal.SIGKILL
    finally:
        process.kill()


def everything(trainer: Trainer) -> dict[str, Tensor]:
    """Weights, optimizer state and random states, copied."""
    return {name: tensor.detach().clone() for name, tensor in trainer.contents.tensors().items()}


def different(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[str]:
    """Names of what is not the same to the bit.

    But for Python's own generator: what checks annotations in tests draws from it.
    """
    return [
        name
        for name in a | b
        if not name.startswith("random/00000/python")
        and (name not in a or name not in b or not torch.equal(a[name], b[name]))
    ]


CASES: dict[str, dict[str, Any]] = {
    "fp16 with its scaler": {"precision": "fp16"},
    "float32": {},
    "master weights, momentum": {
        "precision": "bf16-master",
        "optimizer": {"name": "momentum", "lr": 0.01},
    },
    "stochastic rounding, muon": {"precision": "pure-bf16", "optimizer": {"name": "muon"}},
    "written in the foreground": {"checkpoint": {"every": 1, "in_background": False}},
    "every third step": {"checkpoint": {"every": 3}},
}


def case(folder: Path, name: str) -> TrainConfig:
    """Dropout, two micro-batches a step, and an epoch that ends within a step."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder.parent / "text.txt"
    if not text.exists():
        text.write_text("".join(f"line {n}: {n * n}\n" for n in range(50)))
    values: dict[str, Any] = {
        "steps": STEPS,
        "micro_batch": 2,
        "model": {**TINY, "dropout": 0.2},
        "data": {"text": [str(text)]},
        "evaluation": {"every": 4, "batches": 1},
        "sampling": {"every": 3, "tokens": 2},
        "checkpoint": {"every": 1},
        "log": {"folder": str(folder), "every": 1},
    }
    return language(folder, **(values | CASES[name]))


# Every step with all that there is to be lost; one where it is another optimizer's state.
KILLS = [*((next(iter(CASES)), step) for step in range(1, STEPS)), *((name, 4) for name in CASES)]


@pytest.mark.one_case_in(10)
@pytest.mark.parametrize(("name", "step"), dict.fromkeys(KILLS))
def test_killed_after_any_step_and_resumed_it_is_the_same(
    name: str, step: int, tmp_path: Path
) -> None:
    whole, trained = run(case(tmp_path / "whole", name))
    config = case(tmp_path / "killed", name)
    kill_after(config, step)
    again, resumed = run(config)
    done = STEPS - len(again.training)
    assert again.training == whole.training[done:]
    assert done <= step
    assert different(everything(resumed), everything(trained)) == []
    log = read_log(tmp_path / "whole").series("train/loss")
    assert read_log(config.log.folder).series("train/loss") == log


@pytest.mark.thorough("test_killed_after_any_step_and_resumed_it_is_the_same")
def test_killed_after_every_step_it_is_the_same(tmp_path: Path) -> None:
    """One run that never gets further than a step after each start, until it is through."""
    name = "written in the foreground"
    whole, trained = run(case(tmp_path / "whole", name))
    config = case(tmp_path / "killed", name)
    kill_after(config, 2)
    for step in range(3, STEPS):
        kill_after(config, step)
    history, resumed = run(config)
    assert len(history.training) == 2  # the step whose checkpoint was lost, and the last one
    assert different(everything(resumed), everything(trained)) == []
    assert read_log(config.log.folder).series("train/loss") == tuple(whole.training)


def test_the_data_crosses_an_epoch(tmp_path: Path) -> None:
    """Else the test above would not show what it says."""
    trainer = trainer_of(case(tmp_path / "run", "float32"))
    windows: int = trainer.task._train.windows  # type: ignore[attr-defined]
    assert windows < STEPS * 4
    assert windows % 4


def test_the_comparison_can_fail(tmp_path: Path) -> None:
    """Without dropout's random states the losses are others."""
    config = case(tmp_path / "run", "written in the foreground")
    whole, _ = run(case(tmp_path / "whole", "written in the foreground"))
    kill_after(config, 4)
    trainer = trainer_of(config)
    checkpoints = Checkpoints(config.log.folder)
    resumed = resume(trainer, checkpoints, print)
    torch.manual_seed(0)
    header = RunHeader(config=config.document())
    with logs(config.log.folder, header, resumed_at=4, say=print) as log:
        history = train(trainer, log, Killed(), resumed=resumed)
    assert history.training != whole.training[3:]
    assert [step for step, _ in history.training] == [step for step, _ in whole.training[3:]]


def drawn() -> list[float]:
    """From each generator, the normals that come in pairs, too."""
    draws = [random.random(), random.gauss(0, 1), *np.random.normal(size=3)]
    return [*draws, float(torch.randn(())), random.gauss(0, 1), float(np.random.normal())]


def test_random_states_go_on_as_they_were() -> None:
    for before in range(4):  # with and without a normal that is kept back
        [random.gauss(0, 1) for _ in range(before)]
        np.random.normal(size=before // 2)
        states = copy.deepcopy(random_states())
        first = drawn()
        assert drawn() != first
        set_random_states(states)
        assert drawn() == first


def test_damaged_random_states_are_refused() -> None:
    states = random_states()
    damages = {"python": states["python"][:1], "numpy": {}, "torch": states["torch"][:1]}
    for name, damaged in damages.items():
        with pytest.raises(CheckpointError, match="random states"):
            set_random_states({**states, name: damaged})
    set_random_states(states)


def test_seeding_seeds_every_generator() -> None:
    draws = []
    for seed in (1, 1, 2):
        seed_all(seed)
        draws.append(drawn())
    assert draws[0] == draws[1]
    assert all(a != b for a, b in zip(draws[1], draws[2], strict=True))


# What is refused ---------------------------------------------------------------------------------


def saved(folder: Path, **changes: Any) -> TrainConfig:
    """The config of a run of two steps that was saved."""
    config = teacher(folder, steps=2, **changes)
    run(config)
    return config


def test_another_config_is_refused_with_what_differs(tmp_path: Path) -> None:
    saved(tmp_path)
    other = teacher(tmp_path, steps=3, optimizer={"name": "adagrad", "lr": 0.02})
    with pytest.raises(UsageError) as error:
        resume(trainer_of(other), Checkpoints(other.log.folder), print)
    assert "steps: saved 2, now 3" in str(error.value)
    assert "optimizer.lr: saved 0.01, now 0.02" in str(error.value)
    said: list[str] = []
    trainer = trainer_of(other)
    resumed = resume(trainer, Checkpoints(other.log.folder), said.append, allows_changes=True)
    assert resumed is not None
    assert resumed == 2
    assert "optimizer.lr" in said[0]
    trainer.step(next(iter_batches(trainer, 2)))
    assert trainer.optimizer.param_groups[0]["lr"] == 0.02


def iter_batches(trainer: Trainer, step: int) -> Any:
    with trainer.task.batches(range(step, step + 1), trainer.device) as batches:
        yield from batches


@pytest.mark.parametrize(
    "changes",
    [
        {"log": {"folder": "elsewhere", "every": 2}},
        {"evaluation": {"batches": 3}},
        {"checkpoint": {"keep_last": 5}},
    ],
)
def test_what_does_not_matter_may_differ(changes: dict[str, Any], tmp_path: Path) -> None:
    config = saved(tmp_path)
    said: list[str] = []
    other = teacher(tmp_path, steps=2, **changes)
    resumed = resume(trainer_of(other), Checkpoints(config.log.folder), said.append)
    assert resumed is not None
    assert not said


def test_another_model_is_refused_whatever_is_allowed(tmp_path: Path) -> None:
    config = saved(tmp_path)
    for layers in (1, 0):
        other = teacher(tmp_path, steps=2, teacher={"dim": 16 - layers, "num_layers": layers})
        if layers == 0:
            other = teacher(tmp_path, steps=2, teacher={"dim": 8})
        with pytest.raises(CheckpointError, match="Resume with"):
            resume(trainer_of(other), Checkpoints(config.log.folder), print, allows_changes=True)


def test_another_precision_is_refused(tmp_path: Path) -> None:
    config = saved(tmp_path)
    other = teacher(tmp_path, steps=2, precision="bf16-master")
    with pytest.raises(CheckpointError, match="bfloat16"):
        resume(trainer_of(other), Checkpoints(config.log.folder), print, allows_changes=True)


def test_other_versions_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = saved(tmp_path)
    path = "torchtally.checkpoints.newest.versions"
    here = dict(Checkpoints(config.log.folder).manifest(2).versions)
    monkeypatch.setattr(path, lambda: {**here, "torch": "2.99"})
    said: list[str] = []
    resume(trainer_of(config), Checkpoints(config.log.folder), said.append)
    assert any("torch 2.13" in name and "2.99" in name for name in said)


def test_without_a_checkpoint_it_begins_at_the_beginning(tmp_path: Path) -> None:
    config = teacher(tmp_path)
    assert resume(trainer_of(config), Checkpoints(config.log.folder), print) is None


def test_a_damaged_one_gives_way_to_the_one_before_loudly(tmp_path: Path) -> None:
    config = saved(tmp_path, checkpoint={"every": 1})
    checkpoints = Checkpoints(config.log.folder)
    file = checkpoints.path / "step-00000002" / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    said: list[str] = []
    resumed = resume(trainer_of(config), checkpoints, said.append)
    assert resumed is not None
    assert resumed == 1
    assert str(file) in said[0]
    assert checkpoints.steps() == [1]
    assert len(list(checkpoints.path.glob("damaged-00000002-*"))) == 1


def test_where_none_is_whole_nothing_begins_anew(tmp_path: Path) -> None:
    config = saved(tmp_path)
    (Checkpoints(config.log.folder).path / "step-00000002" / "manifest.json").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"every checkpoint is damaged.*--replace"):
        resume(trainer_of(config), Checkpoints(config.log.folder), print)


# Saving ------------------------------------------------------------------------------------------


def test_what_is_kept(tmp_path: Path) -> None:
    config = teacher(tmp_path, checkpoint={"every": 1, "keep_last": 2, "keep_every": 4})
    run(config)
    assert Checkpoints(config.log.folder).steps() == [10, 9, 8, 4]


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    config = saved(tmp_path)
    trainer = trainer_of(config)
    with torch.no_grad():
        next(iter(trainer.model.parameters())).fill_(float("inf"))
    checkpoints = Checkpoints(config.log.folder)
    saver = Saver(trainer.contents, checkpoints, config.checkpoint)
    with pytest.raises(CheckpointError, match="NaN or inf"):
        saver.save(3)
    assert checkpoints.steps() == [2]


@pytest.mark.thorough
def test_what_fails_in_the_background_ends_the_training(tmp_path: Path) -> None:
    config = teacher(tmp_path, steps=200, checkpoint={"every": 50})
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    trainer = trainer_of(config)
    checkpoints = Checkpoints(config.log.folder)
    real, calls = checkpoints.commit, []

    def failing(new: str, manifest: Any) -> Path:
        calls.append(new)
        if len(calls) == 2:
            raise CheckpointError("no space")
        return real(new, manifest)

    checkpoints.commit = failing  # type: ignore[method-assign]
    header = RunHeader(config=config.document())
    with (
        logs(config.log.folder, header, say=print) as log,
        pytest.raises(CheckpointError, match="no space"),
    ):
        train(trainer, log, Killed(), checkpoints=checkpoints)
    assert len(calls) == 2
    assert checkpoints.steps() == [50]
    assert not [name for name in os.listdir(checkpoints.path) if name.startswith(".")]


def test_the_next_step_does_not_change_what_is_written(tmp_path: Path) -> None:
    """The writing is held up until the training is steps ahead."""
    config = teacher(tmp_path, checkpoint={"every": 3, "keep_last": 9})
    run(config)
    at_three = teacher(tmp_path / "other", steps=10)
    trainer = trainer_of(at_three)
    resumed = resume(trainer, only(config, 3, tmp_path / "three"), print)
    assert resumed is not None
    fresh = trainer_of(teacher(tmp_path / "fresh"))
    torch.manual_seed(0)
    for batch in (batch for step in range(3) for batch in iter_batches(fresh, step)):
        fresh.step(batch)
    weights = (fresh.model.state_dict(), trainer.model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def only(config: TrainConfig, step: int, folder: Path) -> Checkpoints:
    """A folder with one of a run's checkpoints."""
    name = f"step-{step:08}"
    source = Path(config.log.folder) / "checkpoints" / name
    shutil.copytree(source, folder / "checkpoints" / name)
    return Checkpoints(folder)

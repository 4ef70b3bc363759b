"""Small trainings for tests: a config, a run of it, and who looks on."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchtally.progress import StepRecord
from torchtally.train.config import TrainConfig, config_of
from torchtally.train.logs.log import RunHeader
from torchtally.train.logs.together import logs
from torchtally.train.loop import History, train
from torchtally.train.trainer import Trainer, trainer_of

TINY = {
    "layers": 2,
    "width": 32,
    "heads": 4,
    "kv_heads": 2,
    "ffn": 64,
    "vocabulary": 257,
    "context": 32,
}


def language(folder: Path, **changes: Any) -> TrainConfig:
    """A tiny decoder on text of its own folder."""
    text = folder / "text.txt"
    if not text.exists():
        text.write_text("".join(f"line {n}: {n * n} and {n % 7}\n" for n in range(2000)))
    values: dict[str, Any] = {
        "steps": 6,
        "batch": 4,
        "model": TINY,
        "device": "cpu",
        "data": {"text": [str(text)]},
        "log": {"folder": str(folder / "run"), "every": 1},
        "evaluation": {"batches": 2},
    }
    return config_of(values | changes, "test")


def teacher(folder: Path, **changes: Any) -> TrainConfig:
    """The linear teacher: D = 16, B = 4, ten steps."""
    values: dict[str, Any] = {
        "task": "teacher",
        "steps": 10,
        "batch": 4,
        "device": "cpu",
        "clip_norm": 1e9,
        "optimizer": {"name": "adagrad", "lr": 0.01},
        "learning_rate": {"shape": "constant"},
        "log": {"folder": str(folder / "run"), "every": 1},
    }
    return config_of(values | changes, "test")


@dataclass
class Witness:
    """Remembers all that an observer is told."""

    records: list[StepRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)

    def on_step(self, step: int, record: StepRecord) -> None:
        assert step == len(self.records) + 1
        self.records.append(record)

    def on_note(self, text: str) -> None:
        self.notes.append(text)

    def on_evaluation(self, step: int, loss_nats: float, tokens: int) -> None:
        self.evaluations.append(loss_nats)

    def on_sample(self, step: int, text: str) -> None:
        self.samples.append(text)


def run(config: TrainConfig, trainer: Trainer | None = None) -> tuple[History, Witness]:
    """A training from its first step to its last."""
    witness = Witness()
    header = RunHeader(config=config.document())
    with logs(config.log.folder, header, replaces=True, say=witness.on_note) as log:
        history = train(trainer or trainer_of(config), log, witness)
    return history, witness

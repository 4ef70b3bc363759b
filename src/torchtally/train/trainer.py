"""A task with everything to train it: precision, optimizer, learning rate and steps."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from torchtally.checkpoints.objects import Objects
from torchtally.checkpoints.plain import as_json
from torchtally.checkpoints.ranks import ALONE, Ranks
from torchtally.errors import UsageError
from torchtally.train.config import PrecisionName, TrainConfig
from torchtally.train.data.order import rows_of_rank
from torchtally.train.evaluation import Evaluation, Rows, evaluate
from torchtally.train.models.transformer import Transformer
from torchtally.train.optimizers.build import build
from torchtally.train.optimizers.schedules import learning_rates, set_learning_rate
from torchtally.train.outcome import StepResult
from torchtally.train.parallel import is_sharded, parallel
from torchtally.train.precision import Precision, precision
from torchtally.train.spikes import SpikeDetector
from torchtally.train.step import Stepper
from torchtally.train.tasks import Rehearsal, Task, TrainBatch, task_of

ARCHITECTURE = "architecture"
"""In checkpoints: all sizes of a decoder, with those of presets and of weights' config.json."""


@dataclass(slots=True)
class LoopState:
    """What a loop knows of the steps before, for one that goes on."""

    skipped: int = 0
    """Steps without an update."""
    is_evaluated: bool = True
    """Whether the evaluation due after the last step was done."""
    best: tuple[int, float] | None = None
    """The step with the lowest validation loss, and that."""

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        loaded = msgspec.convert(dict(state), LoopState)
        for field in fields(self):
            setattr(self, field.name, getattr(loaded, field.name))


class Trainer:
    """Steps a task's model. The same config and seed give the same losses, on one device.

    Any number of ranks gives the same losses to rounding, except for dropout. Each creates its own
    trainer, and must call the same methods as the others in the same order.
    """

    def __init__(
        self, config: TrainConfig, task: Task, device: torch.device, ranks: Ranks = ALONE
    ) -> None:
        self.config, self.task, self.device, self.ranks = config, task, device, ranks
        part = rows_of_rank(config.batch, ranks.rank, ranks.size)
        self.precision: Precision = precision(precision_name(config, device))
        moves = not is_sharded(config.parallel, ranks)
        self.model: nn.Module = self.precision.prepare(task.model, device, moves=moves)
        is_compiled = device.type == "cuda" if config.compile is None else config.compile
        loss, self._loss_without_backward, self.parallel = parallel(
            self.model, task.loss, config.parallel, precision=self.precision, device=device,
            ranks=ranks, is_compiled=is_compiled,
        )  # fmt: skip
        optimizer = build(self.model, config.optimizer)
        self.optimizer = self.precision.wrap(optimizer, seed=config.seed)
        self._schedule = config.learning_rate.schedule(config.steps)
        self._full_rates = learning_rates(self.optimizer)
        self.stepper = Stepper(
            self.model,
            loss,
            self.optimizer,
            precision=self.precision,
            device=device,
            micro_batch=min(config.rows, part.stop - part.start),
            clip_norm=config.clip_norm,
            on_nonfinite=config.on_nonfinite,
            spikes=SpikeDetector(config.on_spike),
            parallel=self.parallel,
        )
        self.loop = LoopState()
        decoder = task.model.config if isinstance(task.model, Transformer) else None
        self.contents = Objects(
            {"model": self.model, "optimizer": self.optimizer, "stepper": self.stepper,
             "loop": self.loop}, {}, config.document(), ranks, fingerprints=task.fingerprints,
            about={} if decoder is None else {ARCHITECTURE: as_json(decoder)},
        )  # fmt: skip
        """What a checkpoint has of it."""

    def step(self, batch: TrainBatch) -> StepResult:
        """Take one optimizer step. Raises StepError where the config says stop."""
        set_learning_rate(self.optimizer, self._full_rates, self._schedule.factor(batch.step))
        return self.stepper((batch.inputs, batch.targets), step=batch.step)

    @property
    def learning_rate(self) -> float:
        """Learning rate of the first parameter group, in the last step."""
        return learning_rates(self.optimizer)[0]

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of this rank's rows, without a backward pass."""
        return self._loss_without_backward(self.model, inputs, targets)

    def evaluate(self, rows: Iterable[Rows]) -> Evaluation:
        """The validation loss over all ranks; `rows` are this rank's batches."""
        return evaluate(
            self.model,
            self.loss,
            rows,
            precision_context=lambda: self.precision.autocast(self.device),
            ranks=self.ranks,
            byte_counts=self.task.byte_counts,
        )


def device_of(config: TrainConfig, ranks: Ranks = ALONE) -> torch.device:
    """The config's device; for "auto" the GPU if there is one. Raises UsageError if unavailable.

    With several ranks each uses the GPU of its local rank.
    """
    if config.device == "auto":
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    else:
        try:
            device = torch.device(config.device)
        except RuntimeError as error:
            raise UsageError(f"device: unknown device {config.device!r} ({error}).") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError('device: this machine has no usable GPU. Use device = "cpu".')
    has_many = ranks.size > 1 and device.type == "cuda"
    return _gpu_of_rank(device, ranks) if has_many else device


def _gpu_of_rank(device: torch.device, ranks: Ranks) -> torch.device:
    if device.index is not None:
        raise UsageError(
            f"device: {device} is one GPU, but there are {ranks.size} ranks. With torchrun use "
            'device = "cuda": each rank takes its own GPU.'
        )
    there = torch.cuda.device_count()
    if ranks.local_rank >= there:
        raise UsageError(
            f"Rank {ranks.rank} has no GPU: its machine has {there}. Start no more ranks on it "
            f"(torchrun --nproc-per-node {there})."
        )
    return torch.device("cuda", ranks.local_rank)


def device_name(config: TrainConfig) -> str:
    """The driver's name of the config's GPU; "cpu" for the host."""
    device = device_of(config)
    return "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)


def precision_name(config: TrainConfig, device: torch.device) -> PrecisionName:
    """The config's precision; for "auto" bf16 on a GPU that has it, else fp32."""
    if config.precision != "auto":
        return config.precision
    has_bf16 = device.type == "cuda" and not precision("bf16").lack(device)
    return "bf16" if has_bf16 else "fp32"


def rehearse(config: TrainConfig, steps: int = 2, device: str = "cuda") -> None:
    """Some steps of the training on random numbers, without reading or writing files.

    For a simulated device: what these steps allocate and compute is the plan.
    """
    target = torch.device(device)
    is_text = config.task == "language"
    task: Task = Rehearsal(config, target) if is_text else task_of(config, target)
    trainer = Trainer(config, task, target)
    trainer.stepper.guard.on_nonfinite = "take"
    with task.batches(range(steps), target) as batches:
        for batch in batches:
            trainer.step(batch)


def trainer_of(config: TrainConfig, ranks: Ranks = ALONE) -> Trainer:
    """The trainer of a config. Raises UsageError before anything is computed."""
    device = device_of(config, ranks)
    return Trainer(config, task_of(config, device, ranks), device, ranks)

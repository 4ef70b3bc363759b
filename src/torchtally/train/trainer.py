"""A task with all that trains it: precision, optimizer, learning rate and steps."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtally.errors import UsageError
from torchtally.train.config import PrecisionName, TrainConfig
from torchtally.train.optimizers.build import build
from torchtally.train.optimizers.schedules import learning_rates, set_learning_rate
from torchtally.train.outcome import StepResult
from torchtally.train.precision import Precision, precision
from torchtally.train.spikes import SpikeConfig, SpikeDetector
from torchtally.train.step import Loss, Stepper
from torchtally.train.tasks import Rehearsal, Task, Teacher, TrainBatch, task_of


@dataclass(frozen=True, slots=True)
class Trained:
    """What one step did."""

    result: StepResult
    learning_rate: float
    """Of the first parameter group."""


class Trainer:
    """Steps a task's model. The same config and seed give the same losses, on one device."""

    def __init__(self, config: TrainConfig, task: Task, device: torch.device) -> None:
        self.config, self.task, self.device = config, task, device
        self.precision: Precision = precision(precision_name(config, device))
        self.model: nn.Module = self.precision.prepare(task.model, device)
        optimizer = build(self.model, config.optimizer)
        self.optimizer = self.precision.wrapped(optimizer, seed=config.seed)
        self._schedule = config.learning_rate.schedule(config.steps)
        self._full_rates = learning_rates(self.optimizer)
        self.stepper = Stepper(
            self.model,
            self._loss(),
            self.optimizer,
            precision=self.precision,
            device=device,
            micro_batch=config.rows,
            clip_norm=config.clip_norm,
            on_nonfinite=config.on_nonfinite,
            spikes=SpikeDetector(SpikeConfig(on_spike=config.on_spike)),
        )

    def step(self, batch: TrainBatch) -> Trained:
        """One optimizer step. Raises StepError where the config says stop."""
        set_learning_rate(self.optimizer, self._full_rates, self._schedule.factor(batch.step))
        result = self.stepper((batch.inputs, batch.targets), step=batch.step)
        return Trained(result, learning_rates(self.optimizer)[0])

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Of a batch, as training computes it; compiled or not."""
        return self.stepper.loss(self.model, inputs, targets)

    def _loss(self) -> Loss:
        is_compiled = self.config.compile
        if is_compiled is None:
            is_compiled = self.device.type == "cuda"
        loss: Callable[..., Tensor] = self.task.loss
        return torch.compile(loss) if is_compiled else loss


def device_of(config: TrainConfig) -> torch.device:
    """The config's device; of "auto", the GPU where there is one. Raises UsageError for none."""
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(config.device)
    except RuntimeError as error:
        raise UsageError(f"device: {config.device!r} is none ({error}).") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError('device: there is no GPU here; device = "cpu" trains without.')
    return device


def device_name(config: TrainConfig) -> str:
    """As its driver names the config's GPU; "cpu" of the host."""
    device = device_of(config)
    return "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)


def precision_name(config: TrainConfig, device: torch.device) -> PrecisionName:
    """The config's; of "auto", bf16 on a GPU that has it, else fp32."""
    if config.precision != "auto":
        return config.precision
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if has_bf16 else "fp32"


def rehearse(config: TrainConfig, steps: int = 2, device: str = "cuda") -> None:
    """Some steps of the training on numbers made up, no file read and nothing written.

    For a device that is not there: what these steps allocate and compute is the plan.
    """
    target = torch.device(device)
    is_teacher = config.task == "teacher"
    task: Task = Teacher(config, target) if is_teacher else Rehearsal(config, target)
    trainer = Trainer(config, task, target)
    with task.batches(0, steps, target) as batches:
        for batch in batches:
            trainer.step(batch)


def trainer_of(config: TrainConfig) -> Trainer:
    """The config's own: device, data, model. Raises UsageError before anything is computed."""
    device = device_of(config)
    return Trainer(config, task_of(config, device), device)

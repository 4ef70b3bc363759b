"""Small trainings on some ranks: what each of them saw and came to."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtally.checkpoints.ranks import Ranks, join_ranks
from torchtally.checkpoints.shards import gather_whole
from torchtally.train.config import TrainConfig
from torchtally.train.outcome import StepResult
from torchtally.train.tasks import TrainBatch
from torchtally.train.trainer import Trainer, trainer_of

Change = Callable[[TrainBatch, Ranks], TrainBatch]
"""What a test does to a rank's batch."""


@dataclass
class Trained:
    """Of one rank."""

    inputs: list[Tensor]
    """Its rows of each step."""
    results: list[StepResult]
    weights: dict[str, Tensor]
    """Whole, by the names that the optimizer has for them."""
    validation_loss: float
    random_number: float
    """torch's next one: dropout has drawn those before it."""


def as_it_is(batch: TrainBatch, ranks: Ranks) -> TrainBatch:
    return batch


def trained(config: TrainConfig, own: Ranks, change: Change = as_it_is) -> Trained:
    """All steps of a config, and the validation loss before the last of them."""
    trainer = trainer_of(config, own)
    seen: list[Tensor] = []
    results: list[StepResult] = []
    validation_loss = 0.0
    try:
        torch.manual_seed(own.seed(config.seed))
        with trainer.task.batches(range(config.steps), trainer.device) as batches:
            for batch in batches:
                if batch.step == config.steps - 1:
                    validation_loss = validated(trainer)
                seen.append(batch.inputs.clone())
                results.append(trainer.step(change(batch, own)))
        return Trained(
            seen, results, whole_weights(trainer), validation_loss, torch.rand(()).item()
        )
    finally:
        trainer.task.close()


def validated(trainer: Trainer) -> float:
    return trainer.evaluate(list(trainer.task.validation(trainer.device))).loss_nats


def whole_weights(trainer: Trainer) -> dict[str, Tensor]:
    return {
        name: gather_whole(param.detach()).clone()
        for group in trainer.optimizer.param_groups
        for name, param in zip(group["param_names"], group["params"], strict=True)
    }


def trained_on_ranks(configs: list[TrainConfig], change: Change = as_it_is) -> list[Trained]:
    """One training after the other, on the rank that this process is."""
    with join_ranks("cpu") as own:
        return [trained(config, own, change) for config in configs]

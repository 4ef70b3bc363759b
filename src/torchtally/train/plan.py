"""What a training holds and computes, in closed form, from its config alone."""

from dataclasses import dataclass

from torchtally.plan.architecture.weights import Weight, weights_of
from torchtally.plan.deep_linear import deep_linear_flops, deep_linear_weights
from torchtally.plan.flops import token_flops
from torchtally.plan.memory import States, states
from torchtally.plan.optimizers import optimizer
from torchtally.plan.recipes import Recipe
from torchtally.train.config import TrainConfig


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Before anything is built: exact for what is held from step to step."""

    states: States
    step_flops: int
    """Matrix products of a step, forward and backward, attention in full: what MFU counts."""


def plan_of(config: TrainConfig, recipe: Recipe) -> TrainingPlan:
    """Of all ranks together, in the formats of this recipe."""
    held_bytes = states(weights(config), recipe, optimizer(config.optimizer.name))
    return TrainingPlan(held_bytes, step_flops(config))


def weights(config: TrainConfig) -> tuple[Weight, ...]:
    """Every trained tensor."""
    if config.task == "teacher":
        return deep_linear_weights(config.teacher.dim, config.teacher.num_layers)
    return weights_of(config.model.transformer().model())


def step_flops(config: TrainConfig) -> int:
    """Of one optimizer step."""
    if config.task == "teacher":
        teacher_config = config.teacher
        return int(
            deep_linear_flops(
                teacher_config.dim, teacher_config.num_layers, config.batch
            ).total.value
        )
    sequence = config.tokens_of_sequence
    per_token = token_flops(config.model.transformer().model(), sequence).model
    return round(per_token.value * config.batch * sequence)

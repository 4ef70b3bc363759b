"""Memory and FLOPs of a training in closed form, from its config."""

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
    """A closed-form plan; exact for memory held from step to step."""

    states: States
    step_flops: int
    """Of a step's matrix products, forward and backward, with full attention: what MFU counts."""


def plan_of(config: TrainConfig, recipe: Recipe) -> TrainingPlan:
    """The plan over all ranks, in the dtypes of this recipe."""
    held_bytes = states(weights(config), recipe, optimizer(config.optimizer.name))
    return TrainingPlan(held_bytes, step_flops(config))


def weights(config: TrainConfig) -> tuple[Weight, ...]:
    """Every trainable tensor."""
    if config.task == "teacher":
        return deep_linear_weights(config.teacher.dim, config.teacher.num_layers)
    return weights_of(config.model.transformer().model())


def step_flops(config: TrainConfig) -> int:
    """FLOPs of one optimizer step."""
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

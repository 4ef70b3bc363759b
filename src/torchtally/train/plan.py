"""Memory and FLOPs of a training in closed form, from its config."""

from torchtally.plan.architecture.weights import Weight, weights_of
from torchtally.plan.deep_linear import deep_linear_flops, deep_linear_weights
from torchtally.plan.flops import token_flops
from torchtally.plan.memory import States, states
from torchtally.plan.optimizers import optimizer
from torchtally.plan.recipes import Recipe
from torchtally.train.config import TrainConfig


def states_of(config: TrainConfig, recipe: Recipe) -> States:
    """Memory held from step to step, over all ranks and in the dtypes of this recipe: exact."""
    return states(weights(config), recipe, optimizer(config.optimizer.name))


def weights(config: TrainConfig) -> tuple[Weight, ...]:
    """Every trainable tensor."""
    if config.task == "teacher":
        return deep_linear_weights(config.teacher.dim, config.teacher.num_layers)
    return weights_of(config.model.transformer().model())


def step_flops(config: TrainConfig) -> int:
    """Of a step's matrix products, forward and backward, with full attention: what MFU counts."""
    if config.task == "teacher":
        teacher = config.teacher
        flops = deep_linear_flops(teacher.dim, teacher.num_layers, config.batch)
        return int(flops.total.value)
    sequence = config.tokens_of_sequence
    per_token = token_flops(config.model.transformer().model(), sequence).model
    return round(per_token.value * config.batch * sequence)

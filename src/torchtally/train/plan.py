"""Memory and FLOPs of a training in closed form, from its config."""

from torchtally.plan.architecture.weights import Group, Weight, weights_of
from torchtally.plan.deep_linear import deep_linear_flops, deep_linear_weights
from torchtally.plan.flops import token_flops
from torchtally.plan.memory import States, states
from torchtally.plan.optimizers import optimizer
from torchtally.plan.recipes import Recipe
from torchtally.plan.training import training_s
from torchtally.train.config import TrainConfig
from torchtally.train.tasks import own_model


def states_of(config: TrainConfig, recipe: Recipe) -> States:
    """Memory held from step to step, over all ranks and in the dtypes of this recipe: exact."""
    return states(weights(config), recipe, optimizer(config.optimizer.name))


def weights(config: TrainConfig) -> tuple[Weight, ...]:
    """Every trainable tensor."""
    if config.code:
        trained = [(n, p) for n, p in own_model(config).named_parameters() if p.requires_grad]
        return tuple(Weight(name, Group.FEED_FORWARD, tuple(p.shape)) for name, p in trained)
    if config.task == "teacher":
        return deep_linear_weights(config.teacher.dim, config.teacher.num_layers)
    return weights_of(config.model.transformer().model())


def least_step_s(config: TrainConfig, peak_flop_per_s: float | None) -> float | None:
    """Seconds of a step at this rate and nothing else; None where it or the FLOPs are unknown."""
    flops = step_flops(config)
    if not flops or not peak_flop_per_s:
        return None
    return training_s(flops, 1, peak_flop_per_s, 1).value


def step_flops(config: TrainConfig) -> int | None:
    """FLOPs of a step's matrix products, forward and backward, with full attention: what MFU
    counts.

    None for models of the user's own: unknown without a run.
    """
    if config.code:
        return None
    if config.task == "teacher":
        teacher = config.teacher
        flops = deep_linear_flops(teacher.dim, teacher.num_layers, config.batch)
        return int(flops.total.value)
    sequence = config.tokens_of_sequence
    per_token = token_flops(config.model.transformer().model(), sequence).model
    return round(per_token.value * config.batch * sequence)

"""How many bytes an optimizer keeps: before the first step, and afterwards.

Counted in tensors like the parameter, "moments", in the parameter's dtype:

    sgd 0 · momentum 1 · adagrad 1 · rmsprop 1 · adam 2 · adamw 2 · lion 1
    muon 1 for a hidden matrix, 2 for everything else

Step counters are 4 bytes for each tensor, on the host but for torch's fused kernels.
"""

from collections.abc import Mapping
from math import prod

import torch

from torchtally.errors import UsageError
from torchtally.train.optimizers.foreach import ForeachOptimizer, ParameterGroup

MOMENTS: Mapping[str, int] = {
    "sgd": 0, "momentum": 1, "adagrad": 1, "rmsprop": 1, "adam": 2, "adamw": 2, "lion": 1,
    "muon": 2,
}  # fmt: skip
MOMENTS_OF_A_HIDDEN_MATRIX: Mapping[str, int] = {**MOMENTS, "muon": 1}
COUNTER_BYTES = 4


def state_bytes_per_parameter(
    name: str, itemsize_bytes: int = 4, *, is_hidden_matrix: bool = False
) -> int:
    """What the optimizer of this name keeps for one parameter of so many bytes, without counters.

    Only of Muon does it matter whether the parameter is an element of a hidden matrix.
    """
    table = MOMENTS_OF_A_HIDDEN_MATRIX if is_hidden_matrix else MOMENTS
    if name not in table:
        raise UsageError(f"There is no optimizer {name!r}. There are: {', '.join(table)}.")
    return table[name] * itemsize_bytes


def planned_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Moments on the parameters' devices once every parameter has had a gradient; without counters.

    Raises UsageError for an optimizer that is neither one of this package nor of those of
    torch.optim that it stands beside.
    """
    return sum(
        len(_moments(optimizer, group)) * param.numel() * param.element_size()
        for group in optimizer.param_groups
        for param in group["params"]
    )


def planned_counter_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Step counters that will be on the parameters' devices: those of torch's fused kernels."""
    counting = (torch.optim.Adam, torch.optim.Adagrad, torch.optim.RMSprop)
    return COUNTER_BYTES * sum(
        len(group["params"])
        for group in optimizer.param_groups
        if isinstance(optimizer, counting) and group.get("fused")
    )


def held_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Moments that the optimizer holds now; without counters."""
    return sum(
        prod(value.shape) * value.element_size()
        for state in optimizer.state.values()
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and name != "step"
    )


def _moments(optimizer: torch.optim.Optimizer, group: ParameterGroup) -> tuple[str, ...]:
    match optimizer:
        case ForeachOptimizer():
            return optimizer.form(group).moments
        case torch.optim.SGD():
            return ("momentum_buffer",) if group["momentum"] else ()
        case torch.optim.Adagrad():
            return ("sum",)
        case torch.optim.RMSprop():
            mean = ("grad_avg",) if group["centered"] else ()
            return ("square_avg", *mean, *(("momentum_buffer",) if group["momentum"] else ()))
        case torch.optim.Adam():  # AdamW is one, too
            largest = ("max_exp_avg_sq",) if group["amsgrad"] else ()
            return ("exp_avg", "exp_avg_sq", *largest)
    raise UsageError(
        f"What {type(optimizer).__name__} keeps is not known here. Count it after the first step, "
        "with held_state_bytes."
    )

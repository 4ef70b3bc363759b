"""Bytes of optimizer state, planned before the first step and measured afterwards.

Counted in "moments", tensors like the parameter in its dtype:

    sgd 0 · momentum 1 · adagrad 1 · rmsprop 1 · adam 2 · adamw 2 · lion 1
    muon 1 for a hidden matrix, 2 for everything else

Step counters take 4 bytes per tensor, on the host except for torch's fused kernels.
"""

from math import prod

import torch

from torchtally.errors import UsageError
from torchtally.train.optimizers.foreach import ForeachOptimizer, ParameterGroup

COUNTER_BYTES = 4


def planned_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """State on the parameters' devices once every parameter has had a gradient, without counters.

    Raises UsageError for an optimizer that is neither ours nor one of the matching ones in
    torch.optim.
    """
    return sum(
        len(_moments(optimizer, group)) * param.numel() * param.element_size()
        for group in optimizer.param_groups
        for param in group["params"]
    )


def planned_counter_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Step counters on the parameters' devices: those of torch's fused kernels."""
    counting = (torch.optim.Adam, torch.optim.Adagrad, torch.optim.RMSprop)
    return COUNTER_BYTES * sum(
        len(group["params"])
        for group in optimizer.param_groups
        if isinstance(optimizer, counting) and group.get("fused")
    )


def held_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """State that the optimizer holds now, without step counters."""
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
        case torch.optim.Adam():  # AdamW is a subclass
            largest = ("max_exp_avg_sq",) if group["amsgrad"] else ()
            return ("exp_avg", "exp_avg_sq", *largest)
    raise UsageError(
        f"The state of {type(optimizer).__name__} is unknown. Measure it after the first step with "
        "held_state_bytes."
    )

"""Optimizers by name: those of torch.optim, with their defaults."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchtally.errors import RemedyError, did_you_mean

MakeOptimizer = Callable[..., Optimizer]
"""Of parameters, and options."""

LEFT_OUT = ("LBFGS", "SparseAdam")
"""The one calls the model itself, as often as it likes; the other takes sparse gradients alone."""


def optimizer_names() -> dict[str, MakeOptimizer]:
    """The optimizers of torch.optim, by their names in lower case."""
    return {
        name.lower(): value
        for name, value in vars(torch.optim).items()
        if isinstance(value, type)
        and issubclass(value, Optimizer)
        and value is not Optimizer
        and name not in LEFT_OUT
    }


def make_optimizer(
    optimizer: str | MakeOptimizer, parameters: list[nn.Parameter], **options: Any
) -> Optimizer:
    """Optimizer by its name, with torch's options, or by a function of the parameters. Raises
    UsageError for an unknown name.
    """
    if not isinstance(optimizer, str):
        return optimizer(parameters)
    names = optimizer_names()
    optimizer_class = names.get(optimizer.lower())
    if optimizer_class is None:
        known = did_you_mean(optimizer, sorted(names))
        call = "optimizer=lambda parameters: MyOptimizer(parameters)"
        raise RemedyError(
            f"unknown optimizer {optimizer!r}. {known}",
            argument=f"For another one give a function: {call}.",
            option="Another one is an argument of torchtally.summary; none: --optimizer none.",
        )
    return optimizer_class(parameters, **options)

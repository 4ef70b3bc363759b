"""What torch.optim lacks: the base class of our own optimizers.

They are `torch.optim.Optimizer`s, so torch's schedulers, GradScaler, sharding and checkpoints
support them, and their state has torch.optim's names.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from torchtally.checkpoints.checked import check_values
from torchtally.train.optimizers.config import OptimizerConfig

ParameterGroup = dict[str, Any]
"""torch's parameter group: "params" and their hyperparameters."""


class OwnOptimizer(torch.optim.Optimizer, ABC):
    """An optimizer without closures. Parameters without gradient are skipped, including their
    state. Raises UsageError for hyperparameters out of range.
    """

    @abstractmethod
    def _step(self) -> None:
        """One step for every parameter with a gradient."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step for every parameter with a gradient."""
        self._step()

    def add_param_group(self, param_group: ParameterGroup) -> None:
        super().add_param_group(param_group)
        check_values(OptimizerConfig, self.param_groups[-1], f"{type(self).__name__}: ")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Fill in defaults missing in torch.optim's state dicts; `load_state_dict` calls this."""
        super().__setstate__(state)
        for group in self.param_groups:
            for name, default in self.defaults.items():
                group.setdefault(name, default)

    def _with_gradients(self, group: ParameterGroup) -> list[Tensor]:
        """The group's parameters with gradients."""
        return [parameter for parameter in group["params"] if parameter.grad is not None]

    def _moment(self, parameter: Tensor, name: str) -> Float[Tensor, "..."]:
        """A state tensor like the parameter; zeros at first."""
        state = self.state[parameter]
        # torch.optim.SGD's state dicts have momentum_buffer None before the first step.
        if state.get(name) is None:
            state[name] = torch.zeros_like(parameter)
        moment: Tensor = state[name]
        return moment

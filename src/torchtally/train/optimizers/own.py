"""What torch.optim lacks: the base class of our own optimizers.

They are `torch.optim.Optimizer`s, so torch's schedulers, GradScaler, sharding and checkpoints
support them, and their state has torch.optim's names.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, overload

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchtally.errors import UsageError
from torchtally.train.optimizers.hyperparameters import check_hyperparameters

T = TypeVar("T")

ParameterGroup = dict[str, Any]
"""torch's parameter group: "params" and their hyperparameters."""


class OwnOptimizer(torch.optim.Optimizer, ABC):
    """An optimizer whose step may be given a closure that computes the loss first.

    Parameters without gradient are skipped, including their state. Raises UsageError for
    hyperparameters out of range, complex parameters and sparse gradients.
    """

    def __init__(self, parameters: ParamsT, defaults: dict[str, Any]) -> None:
        check_hyperparameters(type(self).__name__, defaults)
        super().__init__(parameters, defaults)

    @abstractmethod
    def _step(self) -> None:
        """One step for every parameter with a gradient."""

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step for every parameter with a gradient; returns the closure's loss, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step()
        return loss

    def add_param_group(self, param_group: ParameterGroup) -> None:
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        check_hyperparameters(type(self).__name__, added)
        for at, parameter in enumerate(added["params"]):
            if not parameter.is_floating_point():
                raise UsageError(
                    f"{type(self).__name__}: {_name(added, at)} is {parameter.dtype}; expected "
                    "a real floating-point dtype."
                )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Fill in defaults missing in torch.optim's state dicts; `load_state_dict` calls this."""
        super().__setstate__(state)
        for group in self.param_groups:
            for name, default in self.defaults.items():
                group.setdefault(name, default)

    def _trained(self, group: ParameterGroup) -> list[Tensor]:
        """The group's parameters with gradients."""
        for at, parameter in enumerate(group["params"]):
            if parameter.grad is not None and parameter.grad.layout is not torch.strided:
                raise UsageError(
                    f"The gradient of {_name(group, at)} is sparse, which this optimizer does not "
                    "support. Create the embedding with sparse=False, or use "
                    "torch.optim.SparseAdam for its weights."
                )
        return [parameter for parameter in group["params"] if parameter.grad is not None]

    def _moment(self, parameter: Tensor, name: str) -> Float[Tensor, "..."]:
        """A state tensor like the parameter; zeros at first."""
        state = self.state[parameter]
        # torch.optim.SGD's state dicts have momentum_buffer None before the first step.
        if state.get(name) is None:
            state[name] = torch.zeros_like(parameter)
        moment: Tensor = state[name]
        return moment


def pack(members: Iterable[T], size_of: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Lists of at most this size in total, in order; a larger member is its own list."""
    packed: list[T] = []
    filled = 0
    for member in members:
        if packed and filled + size_of(member) > limit:
            yield packed
            packed, filled = [], 0
        packed.append(member)
        filled += size_of(member)
    if packed:
        yield packed


def _name(group: ParameterGroup, at: int) -> str:
    """The parameter by name, or by shape if the group has no names."""
    if "param_names" in group:
        return f"parameter {group['param_names'][at]!r}"
    return f"the parameter of shape {tuple(group['params'][at].shape)}"

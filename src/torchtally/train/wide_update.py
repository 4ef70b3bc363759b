"""Updates of bfloat16 weights in float32, with any optimizer of `optimizers.build`.

Most updates are too small for bfloat16. They are kept either by float32 master weights ("master")
or by stochastic rounding ("stochastic"), which needs no copy. Bytes per parameter with AdamW: 2
weight + 2 gradient + 4 master + 8 state = 16, and 2 + 2 + 4 = 8. float32 gradients exist for one
chunk of the parameters at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import cache
from typing import Any, Literal

import torch
from jaxtyping import BFloat16
from torch import Tensor

from torchtally.checkpoints.seeds import derive_seed
from torchtally.errors import UsageError
from torchtally.train.data.seeds import Source, seed_of
from torchtally.train.optimizers.own import OwnOptimizer, ParameterGroup
from torchtally.train.rounding import round_stochastically

Keeping = Literal["master", "stochastic"]

MASTER = "master"
"""Key of the master weight in a parameter's state."""
UPDATES = "rounding_updates"
"""Key in a parameter group: the number of rounded updates, which seeds the next one."""
WIDE_BYTES = 4
CHUNK_BYTES = 256 * 2**20
"""Of float32 per chunk: small beside the parameters of a model that fills a GPU."""


class WideUpdate(OwnOptimizer):
    """Steps another optimizer on float32 copies of bfloat16 parameters, and writes them back.

    Wraps a new optimizer over bfloat16 parameters; step this one instead, and use its parameter
    groups. "master": copies and state are float32 and permanent, and weights are rounded to the
    nearest. "stochastic": float32 copies exist while their chunk is updated; weights and state are
    bfloat16, rounded with draws that are a pure function of (seed, update), equal on every replica.
    The state dict is that of an optimizer, with the copies under "master". Raises UsageError for
    parameters of another dtype.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        keeping: Keeping,
        *,
        seed: int = 0,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        # Hooks on optimizers and their steps, as of profilers and traces, should see only this
        # optimizer: copy() runs no constructor, and the inner step is called without hooks.
        self.inner = copy(optimizer)
        self._inner_step = _without_hooks(type(optimizer).step)
        self.keeping = keeping
        self.chunk_bytes = chunk_bytes
        self._seed = seed_of(Source.ROUNDING, seed)
        _check_dtypes(optimizer)
        groups = [_own_group(param_group) for param_group in optimizer.param_groups]
        super().__init__(groups, dict(optimizer.defaults))
        self._wide = {parameter: self._first_wide(parameter) for parameter in self._parameters()}
        for group in self.inner.param_groups:
            group["params"] = [self._wide[param] for param in group["params"]]
        for group in self.param_groups:
            for parameter in group["params"]:
                # torch.optim.Adagrad allocates its sums when constructed, rounded to bfloat16.
                if state := self.inner.state.pop(parameter, None):
                    first = group["initial_accumulator_value"]
                    state["sum"] = torch.full_like(parameter, first, dtype=torch.float32)
                    self.inner.state[self._wide[parameter]] = state
        self._take_over_state()

    def _step(self) -> None:
        self._hand_over_hyperparameters()
        # A seed for each update: resuming needs only the count, no generator state.
        seed = derive_seed(self._seed, self.param_groups[0][UPDATES])
        generator_on = cache(lambda device: torch.Generator(device).manual_seed(seed))
        for chunk in self._chunks():
            for parameter in chunk:
                self._widen(parameter)
            # Optimizers skip parameters without gradient, including their step counters, so one
            # step per chunk equals one step of all.
            self._inner_step(self.inner)
            for parameter in chunk:
                self._narrow(parameter, generator_on)
        for group in self.param_groups:
            group[UPDATES] += 1

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of the same class, weights and keeping."""
        masters = {index: state.get(MASTER) for index, state in state_dict["state"].items()}
        if self.keeping == "master" and any(master is None for master in masters.values()):
            raise UsageError(
                "The saved optimizer has no float32 master weights. Resume in the saved precision."
            )
        super().load_state_dict({**state_dict, "state": {}})
        inner_state = {
            index: {name: value for name, value in state.items() if name != MASTER}
            for index, state in state_dict["state"].items()
        }
        self.inner.load_state_dict({**state_dict, "state": inner_state})
        if self.keeping == "master":
            for index, parameter in enumerate(self._parameters()):
                if index in masters:
                    self._wide[parameter].copy_(masters[index])
        self._take_over_state()

    def _first_wide(self, parameter: Tensor) -> Tensor:
        if self.keeping == "master":
            return parameter.detach().to(torch.float32)
        return torch.empty(0, dtype=torch.float32, device=parameter.device)

    def _take_over_state(self) -> None:
        """Share the inner optimizer's state, in the dtype it is kept in."""
        for parameter, wide in self._wide.items():
            if wide in self.inner.state:
                state = self.inner.state[wide]
                dtype = torch.float32 if self.keeping == "master" else torch.bfloat16
                for name in _wide_names(state):
                    state[name] = state[name].to(dtype)
                self._list(parameter)

    def _list(self, parameter: Tensor) -> None:
        """Both optimizers share the dict of a parameter's state."""
        state = self.inner.state[self._wide[parameter]]
        if self.keeping == "master":
            state[MASTER] = self._wide[parameter]
        self.state[parameter] = state

    def _hand_over_hyperparameters(self) -> None:
        for own, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner.update({k: v for k, v in own.items() if k not in ("params", UPDATES)})

    def _widen(self, parameter: Tensor) -> None:
        wide = self._wide[parameter]
        if self.keeping == "stochastic":
            wide.data = parameter.detach().to(torch.float32)
            state = self.inner.state.get(wide, {})
            for name in _wide_names(state):
                state[name] = state[name].to(torch.float32)
        assert parameter.grad is not None
        wide.grad = parameter.grad.to(torch.float32)

    def _narrow(
        self, parameter: Tensor, generator_on: Callable[[torch.device], torch.Generator]
    ) -> None:
        wide = self._wide[parameter]
        wide.grad = None
        if self.keeping == "master":
            parameter.copy_(wide)
        else:
            generator = generator_on(parameter.device)
            parameter.copy_(round_stochastically(wide, generator))
            wide.data = wide.new_empty(0)
            state = self.inner.state[wide]
            for name in _wide_names(state):
                state[name] = round_stochastically(state[name], generator)
        self._list(parameter)

    def _chunks(self) -> Iterator[list[Tensor]]:
        """Parameters with gradients, in chunks of limited float32 size."""
        chunk: list[Tensor] = []
        filled_bytes = 0
        for parameter in self._parameters():
            if parameter.grad is None:
                continue
            size_bytes = parameter.numel() * WIDE_BYTES
            if chunk and filled_bytes + size_bytes > self.chunk_bytes:
                yield chunk
                chunk, filled_bytes = [], 0
            chunk.append(parameter)
            filled_bytes += size_bytes
        if chunk:
            yield chunk

    def _parameters(self) -> list[BFloat16[Tensor, "..."]]:
        return [param for group in self.param_groups for param in group["params"]]


def _without_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """`step` without the hooks that torch.optim.Optimizer wraps around it
    (torch/optim/optimizer.py, profile_hook_step).
    """
    bare: Callable[..., Any] = step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[attr-defined]
    return bare


def _own_group(group: ParameterGroup) -> ParameterGroup:
    """A copy of a parameter group, with names in the form that torch expects."""
    others = {k: v for k, v in group.items() if k not in ("params", "param_names")}
    names: Sequence[str] | None = group.get("param_names")
    members = list(group["params"])
    listed = members if names is None else list(zip(names, members, strict=True))
    return {"params": listed, **others, UPDATES: 0}


def _wide_names(state: dict[str, Any]) -> list[str]:
    """State tensors like the parameter, without the step counter: bfloat16 cannot count past
    256.
    """
    return [
        name
        for name, value in state.items()
        if name not in ("step", MASTER) and isinstance(value, Tensor) and value.is_floating_point()
    ]


def _check_dtypes(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.dtype != torch.bfloat16:
                raise UsageError(
                    f"A parameter of shape {tuple(param.shape)} is {param.dtype}; this precision "
                    "needs bfloat16. Prepare the model before building its optimizer."
                )

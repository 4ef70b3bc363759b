"""Updates of bfloat16 weights in float32, with any optimizer of `optimizers.build`.

Most updates are too small for bfloat16. They are kept either by float32 master weights ("master")
or by stochastic rounding ("stochastic"), which needs no copy. Bytes per parameter with AdamW: 2
weight + 2 gradient + 4 master + 8 state = 16, and 2 + 2 + 4 = 8. float32 gradients exist for one
chunk of the parameters at a time.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from copy import copy
from functools import cache
from itertools import accumulate, groupby
from typing import Any, Literal

import torch
from jaxtyping import BFloat16
from torch import Tensor

from torchtally.checkpoints.seeds import derive_seed
from torchtally.errors import UsageError
from torchtally.train.data.seeds import Source, seed_of
from torchtally.train.rounding import round_stochastically

Keeping = Literal["master", "stochastic"]

MASTER = "master"
"""Key of the master weight in a parameter's state."""
UPDATES = "rounding_updates"
"""Key in a parameter group: the number of rounded updates, which seeds the next one."""
WIDE_BYTES = 4
CHUNK_BYTES = 256 * 2**20
"""Of float32 per chunk: small beside the parameters of a model that fills a GPU."""


class WideUpdate(torch.optim.Optimizer):
    """Steps another optimizer on float32 copies of bfloat16 parameters, and writes them back.

    Wraps a new optimizer over bfloat16 parameters; step this one instead. "master": float32 weights
    are kept in the state under "master", and weights are rounded to the nearest. "stochastic":
    weights and state are bfloat16, rounded with draws that are a pure function of (seed, update),
    equal on every replica. Raises UsageError for parameters of another dtype.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        keeping: Keeping,
        *,
        seed: int = 0,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        _check_dtypes(optimizer)
        # Hooks on optimizers and their steps, as of profilers and traces, should see only this
        # optimizer: copy() runs no constructor, and the inner step is called without hooks.
        self.inner = copy(optimizer)
        self._inner_step = _without_hooks(type(optimizer).step)
        self.keeping, self.chunk_bytes = keeping, chunk_bytes
        self._seed = seed_of(Source.ROUNDING, seed)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.state = self.inner.state
        dtype = torch.float32 if keeping == "master" else torch.bfloat16
        for group in self.param_groups:
            group[UPDATES] = 0
            for parameter in group["params"]:
                # torch.optim.Adagrad allocates its sums when constructed, rounded to bfloat16.
                if parameter in self.state:
                    first = group["initial_accumulator_value"]
                    self.state[parameter]["sum"] = torch.full_like(parameter, first, dtype=dtype)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step for every parameter with a gradient."""
        # A seed for each update: resuming needs only the count, no generator state.
        seed = derive_seed(self._seed, self.param_groups[0][UPDATES])
        generator_on = cache(lambda device: torch.Generator(device).manual_seed(seed))
        for chunk in self._chunks([each for each in self._parameters() if each.grad is not None]):
            wide = {parameter: self._widen(parameter) for parameter in chunk}
            # Optimizers skip parameters without gradient, including their step counters, so one
            # step per chunk equals one step of all.
            self.inner.param_groups = [
                {**group, "params": [wide[each] for each in group["params"] if each in wide]}
                for group in self.param_groups
            ]
            self.inner.state = defaultdict(dict, {wide[each]: self.state[each] for each in chunk})
            self._inner_step(self.inner)
            for parameter in chunk:
                self._narrow(parameter, wide.pop(parameter), generator_on)
        self.inner.state, self.inner.param_groups = self.state, self.param_groups
        for group in self.param_groups:
            group[UPDATES] += 1

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of the same class, weights and keeping."""
        is_master, saved = self.keeping == "master", state_dict["state"]
        if is_master and not all(MASTER in state for state in saved.values()):
            raise UsageError(
                "The saved optimizer has no float32 master weights. Resume in the saved precision."
            )
        self.inner.load_state_dict(state_dict)
        self.state, self.param_groups = self.inner.state, self.inner.param_groups
        for index, parameter in enumerate(self._parameters() if is_master else ()):
            # torch casts what it loads to the parameter's dtype (torch/optim/optimizer.py).
            for name in (*_wide_names(state := saved.get(index, {})), *({MASTER} & {*state})):
                wide = state[name].to(parameter.device, torch.float32, copy=True)
                self.state[parameter][name] = wide

    def _widen(self, parameter: Tensor) -> Tensor:
        """The parameter with its gradient in float32, as its state is then, too.

        Another tensor: DDP's hooks are lost where the dtype of a parameter changes
        (torch/csrc/autograd/variable.cpp, set_data).
        """
        assert parameter.grad is not None
        state = self.state[parameter]
        wide: Tensor = state.get(MASTER, parameter.detach()).to(torch.float32)
        wide.grad = parameter.grad.to(torch.float32)
        for name in _wide_names(state):
            state[name] = state[name].to(torch.float32)
        return wide

    def _narrow(
        self,
        parameter: Tensor,
        wide: Tensor,
        generator_on: Callable[[torch.device], torch.Generator],
    ) -> None:
        state = self.state[parameter]
        wide.grad = None
        if self.keeping == "master":
            parameter.copy_(wide)
            state[MASTER] = wide
            return
        generator = generator_on(parameter.device)
        parameter.copy_(round_stochastically(wide, generator))
        for name in _wide_names(state):
            state[name] = round_stochastically(state[name], generator)

    def _chunks(self, parameters: Collection[Tensor]) -> Iterator[list[Tensor]]:
        """Chunks of about `chunk_bytes` of float32."""
        ends = accumulate(parameter.numel() * WIDE_BYTES for parameter in parameters)
        numbered = zip(ends, parameters, strict=True)
        for _, chunk in groupby(numbered, lambda pair: pair[0] // self.chunk_bytes):
            yield [parameter for _, parameter in chunk]

    def _parameters(self) -> list[BFloat16[Tensor, "..."]]:
        return [param for group in self.param_groups for param in group["params"]]


def _without_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """`step` without the hooks that torch.optim.Optimizer wraps around it
    (torch/optim/optimizer.py, profile_hook_step).
    """
    bare: Callable[..., Any] = step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[attr-defined]
    return bare


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

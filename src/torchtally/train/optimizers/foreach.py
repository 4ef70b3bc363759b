"""The base class of our own optimizers: lists of parameters, and an equation over these lists.

An optimizer is one equation, `_update`, over the parameters of a batch, their gradients and their
state, by torch's foreach operators: on a GPU a handful of kernels for hundreds of tensors. It is a
`torch.optim.Optimizer`, so torch's schedulers, GradScaler, sharding and checkpoints support it, and
its state has torch.optim's names: their state dicts are interchangeable.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim.optimizer import ParamsT

from torchtally.errors import UsageError
from torchtally.torch_private import foreach_add_, foreach_mul_
from torchtally.train.optimizers.hyperparameters import check_hyperparameters
from torchtally.train.shards import local_part

T = TypeVar("T")

ParameterGroup = dict[str, Any]
"""torch's parameter group: "params" and their hyperparameters."""

BATCH_ELEMENTS = 2**26
"""Per batch on a GPU: enough to keep it busy, while temporaries of 256 MiB in float32 are small
beside the parameters of a model that fills it."""
CPU_THREAD_ELEMENTS = 2**17
"""Per thread on the CPU: the equation's tensors then stay in its cache between operations. AdamW in
benchmarks/optimizers.py takes 0.58 of torch's for-loop with 2**17, 0.73 with 2**15, where Python's
overhead shows, and 0.83 in one piece."""


@dataclass(frozen=True, slots=True)
class Form:
    """The state an equation keeps per parameter, and whether it works elementwise."""

    moments: tuple[str, ...]
    """Names of state tensors shaped like the parameter."""
    counts_steps: bool = False
    is_elementwise: bool = True


@dataclass(frozen=True, slots=True)
class Member:
    """One parameter, or a piece of one, with its gradient and its state."""

    parameter: Float[Tensor, "..."]
    gradient: Float[Tensor, "..."]
    moments: tuple[Float[Tensor, "..."], ...]
    step: float
    """Steps taken, including this one; 0 if the equation does not count them."""

    def pieces(self, elements: int) -> Iterator["Member"]:
        """Views of at most this many elements; itself if its tensors' layouts differ."""
        tensors = (self.parameter, self.gradient, *self.moments)
        if self.parameter.numel() <= elements or not all(map(_is_flat, tensors)):
            yield self
            return
        for parameter, gradient, *moments in zip(
            *(tensor.detach().view(-1).split(elements) for tensor in tensors), strict=True
        ):
            yield Member(parameter, gradient, tuple(moments), self.step)


@dataclass(frozen=True, slots=True)
class ParameterBatch:
    """Lists in the same order; all tensors on one device, parameters of one dtype."""

    parameters: list[Float[Tensor, "..."]] = field(default_factory=list)
    gradients: list[Float[Tensor, "..."]] = field(default_factory=list)
    moments: tuple[list[Float[Tensor, "..."]], ...] = ()
    steps: list[float] = field(default_factory=list)


class ClosureOptimizer(torch.optim.Optimizer, ABC):
    """An optimizer whose step may be given a closure that computes the loss first."""

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


class ForeachOptimizer(ClosureOptimizer):
    """An optimizer that is one equation over lists of tensors.

    Parameters without gradient are skipped, including their state and step counter. Raises
    UsageError for hyperparameters out of range, complex parameters and sparse gradients.
    """

    def __init__(self, parameters: ParamsT, defaults: dict[str, Any]) -> None:
        check_hyperparameters(type(self).__name__, defaults)
        super().__init__(parameters, defaults)

    @staticmethod
    @abstractmethod
    def form(group: ParameterGroup) -> Form:
        """The form of the equation for this group."""

    @abstractmethod
    def _update(self, batch: ParameterBatch, group: ParameterGroup) -> None:
        """One step of the equation, in place."""

    def _step(self) -> None:
        for group in self.param_groups:
            form = self.form(group)
            for batch in _batches(self._members(group, form), form):
                self._update(batch, group)

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
        """Fill in defaults missing in torch.optim's state dicts; `load_state_dict` calls this.

        Step counters move to the host, where reading them does not synchronize with a GPU.
        """
        super().__setstate__(state)
        for group in self.param_groups:
            for name, default in self.defaults.items():
                group.setdefault(name, default)
        for kept in self.state.values():
            if "step" in kept:
                kept["step"] = torch.as_tensor(kept["step"], dtype=torch.float32, device="cpu")

    def _members(self, group: ParameterGroup, form: Form) -> list[Member]:
        """The group's parameters with gradients; increments their step counters."""
        present = [at for at, param in enumerate(group["params"]) if param.grad is not None]
        for at in present:
            _check_dense(group, at)
        parameters = [group["params"][at] for at in present]
        moments = [
            [self._state(parameter, name, torch.zeros_like) for parameter in parameters]
            for name in form.moments
        ]
        steps = [0.0] * len(parameters)
        if form.counts_steps and parameters:
            counters = [self._state(parameter, "step", _counter) for parameter in parameters]
            foreach_add_(counters, _ONE, alpha=1)
            steps = [float(counter) for counter in counters]
        # Elementwise equations update each rank's shard with plain operations.
        part = local_part if form.is_elementwise else _as_it_is
        return [
            Member(part(weight), part(weight.grad), tuple(map(part, own)), step)
            for weight, step, *own in zip(parameters, steps, *moments, strict=True)
        ]

    def _state(
        self, parameter: Tensor, name: str, first: Callable[[Tensor], Tensor]
    ) -> Float[Tensor, "..."]:
        state = self.state[parameter]
        # torch.optim.SGD's state dicts have momentum_buffer None before the first step.
        if state.get(name) is None:
            state[name] = first(parameter)
        kept: Tensor = state[name]
        return kept


def scale(tensors: list[Float[Tensor, "..."]], factor: float) -> None:
    """Multiply the tensors by a number, in place."""
    # On the CPU foreach is a loop as well, but rounds the factor to the tensors' dtype first: in
    # bfloat16 a decay of 0.999 would be 1 (aten/src/ATen/native/ForeachOpsKernels.cpp).
    if tensors and tensors[0].device.type == "cpu":
        for tensor in tensors:
            tensor.mul_(factor)
    else:
        foreach_mul_(tensors, factor)


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


_ONE = torch.ones((), device="cpu")


def _counter(parameter: Tensor) -> Float[Tensor, ""]:
    return torch.zeros((), dtype=torch.float32, device="cpu")


def _batches(members: Iterable[Member], form: Form) -> Iterator[ParameterBatch]:
    """Batches of members of one device and dtype, sized for the device."""
    kinds: dict[tuple[torch.device, torch.dtype, torch.dtype], list[Member]] = {}
    for member in members:
        kind = (member.parameter.device, member.parameter.dtype, member.gradient.dtype)
        kinds.setdefault(kind, []).append(member)
    for (device, _, _), alike in kinds.items():
        limit = _batch_elements(device)
        pieces = (
            (piece for member in alike for piece in member.pieces(limit))
            if form.is_elementwise
            else alike
        )
        yield from map(_batch, pack(pieces, lambda piece: piece.parameter.numel(), limit))


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


def _batch(members: list[Member]) -> ParameterBatch:
    return ParameterBatch(
        [member.parameter for member in members],
        [member.gradient for member in members],
        tuple(map(list, zip(*(member.moments for member in members), strict=True))),
        [member.step for member in members],
    )


def _batch_elements(device: torch.device) -> int:
    if device.type == "cpu":
        return CPU_THREAD_ELEMENTS * torch.get_num_threads()
    return BATCH_ELEMENTS


def _is_flat(tensor: Tensor) -> bool:
    """Whether it can be viewed as a vector; tensor subclasses such as DTensor are excluded."""
    return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.is_contiguous()


def _check_dense(group: ParameterGroup, at: int) -> None:
    if group["params"][at].grad.layout is not torch.strided:
        raise UsageError(
            f"The gradient of {_name(group, at)} is sparse, which this optimizer does not support. "
            "Create the embedding with sparse=False, or use torch.optim.SparseAdam for its weights."
        )


def _name(group: ParameterGroup, at: int) -> str:
    """The parameter by name, or by shape if the group has no names."""
    if "param_names" in group:
        return f"parameter {group['param_names'][at]!r}"
    return f"the parameter of shape {tuple(group['params'][at].shape)}"

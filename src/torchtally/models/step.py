"""A step of a model on a virtual GPU: traced, with what its modules are and return."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from torchtally import torch_private as private
from torchtally.errors import RemedyError, UsageError
from torchtally.models.inputs import Inputs
from torchtally.models.optimizers import MakeOptimizer, make_optimizer
from torchtally.models.placing import TensorDevices, model_on_gpu, tensors_of
from torchtally.models.precision import StepPrecision
from torchtally.runs.tracing_context import tracing
from torchtally.timing.roofline import Roofline
from torchtally.trace import Ending, Trace
from torchtally.views.model_summary import ModuleFacts, Shape

STEP = 2
"""The step that is reported. The one before it makes the optimizer's state."""

Loss = Callable[[Any], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """What to run."""

    model: nn.Module | Callable[[], nn.Module]
    inputs: Inputs
    optimizer: str | MakeOptimizer | None
    precision: StepPrecision
    is_training: bool
    loss: Loss | None
    micro_batches: int = 1
    """Forward and backward passes before the optimizer's step."""


@dataclass(slots=True)
class StepRun:
    """What came out."""

    modules: list[ModuleFacts] = field(default_factory=list)
    inputs: str = ""
    unused: frozenset[str] = frozenset()
    """Parameters that need a gradient and got none, by name."""
    trace: Trace | None = None


def run_step(request: StepRequest, roofline: Roofline) -> tuple[Trace, StepRun]:
    """A traced step, the second one of its model, whose optimizer has its state.

    Nothing of the caller's changes: neither the model nor random states, and no file. Memory is
    unlimited, so that a step that does not fit has figures, too. Whatever the model raises is
    raised here.
    """
    run = _run(request, roofline, frozenset())
    if run.unused and request.optimizer is not None:
        # An optimizer keeps nothing for what never has a gradient: which parameters those are
        # shows the backward pass.
        run = _run(request, roofline, run.unused)
    assert run.trace is not None
    return run.trace, run


def _run(request: StepRequest, roofline: Roofline, idle: frozenset[str]) -> StepRun:
    model = request.model
    tensors = list(tensors_of(model)) if isinstance(model, nn.Module) else []
    devices = TensorDevices.of([*tensors, *request.inputs.tensors])
    run = StepRun()
    with (
        random_states_kept(),
        tracing(_name(model), roofline, memory_is_limited=False) as session,
        request.precision.products(),
    ):
        recorder = session.recorder

        def end_step() -> None:
            recorder.step_ends.append(recorder.clock)

        _take_step(request, devices, idle, run, end_step)
        run.trace = session.trace(Ending("steps"))
    return run


def _take_step(
    request: StepRequest,
    devices: TensorDevices,
    idle: frozenset[str],
    run: StepRun,
    end_step: Callable[[], None],
) -> None:
    model, precision = request.model, request.precision
    if not isinstance(model, nn.Module):
        model = _build(model)
    dtype = precision.weight_dtype
    copied = model_on_gpu(model, devices, dtype)
    if copied.training is not request.is_training:
        copied.train(request.is_training)
    inputs = request.inputs.on_gpu(devices, dtype if precision.autocast_dtype is None else None)
    run.inputs = str(inputs)
    if any(map(is_lazy, copied.parameters())):
        with torch.no_grad():  # lazy modules get their sizes from what they are first called with
            copied(*inputs.positional, **inputs.named)
    outputs: dict[nn.Module, tuple[Shape, ...]] = {}
    hooks = [module.register_forward_hook(_shapes_into(outputs)) for module in copied.modules()]
    trained = [parameter for parameter in copied.parameters() if parameter.requires_grad]
    optimizer = None
    if request.is_training and trained and request.optimizer is not None:
        optimizer = make_optimizer(request.optimizer, trained)
        _make_state(optimizer, copied, idle)
    else:
        end_step()
    if request.is_training:
        for _ in range(request.micro_batches):
            _train(copied, inputs, request)
        run.unused = (
            frozenset(
                name
                for name, parameter in copied.named_parameters()
                if parameter.requires_grad and parameter.grad is None
            )
            - idle
        )
    else:
        with torch.no_grad(), precision.forward():
            copied(*inputs.positional, **inputs.named)
    if optimizer is not None:
        optimizer.step()
    else:
        end_step()
    for hook in hooks:
        hook.remove()
    run.modules = list(facts_of(copied, outputs))


def _build(build: Callable[[], nn.Module]) -> nn.Module:
    model = build()
    if not isinstance(model, nn.Module):
        raise UsageError(f"{_name(build)} returned {type(model).__name__}, not a torch.nn.Module.")
    return model


def _make_state(optimizer: Optimizer, model: nn.Module, idle: frozenset[str]) -> None:
    """A step on gradients of no value: afterwards the optimizer has the state it trains with."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name not in idle:
            parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def _train(model: nn.Module, inputs: Inputs, request: StepRequest) -> None:
    """Forward and backward. Without a loss the backward pass begins with a gradient of each output
    tensor, as any loss would hand it over.
    """
    with request.precision.forward():
        output = model(*inputs.positional, **inputs.named)
        loss = _loss_in(output) if request.loss is None else request.loss(output)
    if loss is not None:
        if not loss.requires_grad:
            raise _without_gradient(model, "the loss has no gradient", FORWARD_ALONE)
        loss.backward()
        return
    tensors = [tensor for tensor in _tensors_in(output) if tensor.requires_grad]
    if not tensors:
        what = f"{type(output).__name__}, in which no tensor has a gradient"
        loss_of = "Give loss=, a function of what the model returns, or training=False for a "
        raise _without_gradient(
            model, f"{type(model).__name__} returned {what}", f"{loss_of}forward pass alone."
        )
    GradientOfOnes.apply(*tensors).backward()  # type: ignore[no-untyped-call]


FORWARD_ALONE = "For a forward pass alone give training=False."


def _without_gradient(model: nn.Module, what: str, argument: str) -> RemedyError:
    """The error of a step that nothing can be trained by."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        what, argument = f"{what}: every parameter is frozen", FORWARD_ALONE
    return RemedyError(
        f"{what}.", argument=argument, option="For a forward pass alone give --eval."
    )


class GradientOfOnes(torch.autograd.Function):
    """A loss that hands each tensor a gradient, made in the backward pass as a loss's own is."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        ctx.like = [(tensor.shape, tensor.dtype) for tensor in tensors]
        return torch.empty((), device="cuda")

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return tuple(torch.ones(shape, dtype=dtype, device="cuda") for shape, dtype in ctx.like)


def _part(output: Any, name: str) -> Any:
    if isinstance(output, dict):
        return output.get(name)
    return getattr(output, name, None)


def _loss_in(output: Any) -> Tensor | None:
    """The loss that the output of a model of transformers has."""
    loss = None if isinstance(output, Tensor) else _part(output, "loss")
    return loss if isinstance(loss, Tensor) and loss.numel() == 1 else None


def _tensors_in(output: Any) -> list[Tensor]:
    """What a loss is made of: the logits where the output names them, else all."""
    logits = None if isinstance(output, Tensor) else _part(output, "logits")
    leaves = private.tree_leaves(output if logits is None else logits)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _shapes_into(
    outputs: dict[nn.Module, tuple[Shape, ...]],
) -> Callable[[nn.Module, Any, Any], None]:
    def keep(module: nn.Module, args: Any, output: Any) -> None:
        outputs[module] = tuple(tuple(tensor.shape) for tensor in _tensors_in(output))

    return keep


def facts_of(
    model: nn.Module, outputs: dict[nn.Module, tuple[Shape, ...]]
) -> Iterator[ModuleFacts]:
    """Facts of each module in each that holds it; a parameter that several share is the first's."""
    seen: set[int] = set()
    for path, module in _modules_by_holder("", model, (model,)):
        whole = list(module.parameters(recurse=False))
        own = [each for each in whole if id(each) not in seen]
        seen.update(map(id, own))
        yield ModuleFacts(
            path=path,
            class_name=private.class_name(module),
            shapes=tuple(tuple(parameter.shape) for parameter in own),
            trained=tuple(parameter.requires_grad for parameter in own),
            shared=len(whole) - len(own),
            output=outputs.get(module, ()),
            is_called=not isinstance(module, nn.ModuleList | nn.ModuleDict),
        )


def _modules_by_holder(
    path: str, module: nn.Module, around: tuple[nn.Module, ...]
) -> Iterator[tuple[str, nn.Module]]:
    """(path, module) of a module and all inside it; a shared one in each that holds it, by its
    first name there: calls are told apart by the module that makes them.
    """
    yield path, module
    for name, child in module.named_children():
        if child not in around:
            yield from _modules_by_holder(f"{path}.{name}".lstrip("."), child, (*around, child))


def _name(model: nn.Module | Callable[[], nn.Module]) -> str:
    if isinstance(model, nn.Module):
        return type(model).__name__
    return getattr(model, "__qualname__", type(model).__name__)


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Afterwards the generators of torch's host, Python and numpy are where they were."""
    host, python, numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(host)
        random.setstate(python)
        np.random.set_state(numpy)

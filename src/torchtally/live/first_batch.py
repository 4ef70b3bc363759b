"""What a model is first called with in a training step, and how: enough to predict its steps."""

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from torchtally import torch_private as private
from torchtally.errors import UsageError
from torchtally.models.inputs import Inputs
from torchtally.models.optimizers import MakeOptimizer
from torchtally.models.precision import StepPrecision
from torchtally.models.step import Loss, StepRequest

MOST_READ_BYTES = 8 * 2**20
"""Of an integer or boolean input on a GPU that is copied to the host: its values decide masks."""
FLOAT_RATE = 1e-3
"""In place of a learning rate that is a tensor: no time or memory depends on it."""


def step_request(
    model: nn.Module,
    inputs: Inputs,
    autocast: torch.dtype | None,
    optimizer: Optimizer | MakeOptimizer | str | None,
    micro_batches: int = 1,
    loss: Loss | None = None,
) -> StepRequest:
    """Training step of a first batch. Raises UsageError for a model that cannot be taken apart."""
    model = unwrap(model)
    return StepRequest(
        model=model,
        inputs=readable(inputs),
        optimizer=optimizer_like(optimizer, model),
        precision=StepPrecision("as the loop runs it", None, autocast),
        is_training=True,
        loss=loss,
        micro_batches=micro_batches,
    )


def unwrap(model: nn.Module) -> nn.Module:
    """The model itself: without torch.compile, DDP or DataParallel around it.

    Raises UsageError for one whose weights are shards: its steps need the other ranks.
    """
    while (inner := _inner(model)) is not None:
        model = inner
    if is_sharded(model):
        raise UsageError(
            "the model's weights are shards of several GPUs. Give a trace of the script instead: "
            "`tally run --gpu 8xH100-SXM train.py` writes run.tally."
        )
    return model


def is_sharded(model: nn.Module) -> bool:
    """Whether each rank holds a part of each weight (FSDP2, tensor parallelism)."""
    if not (dist.is_available() and dist.is_initialized()):
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def _inner(model: nn.Module) -> nn.Module | None:
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    if isinstance(model, wrappers):
        return model.module  # type: ignore[no-any-return]
    return private.original_module(model)


def optimizer_like(
    optimizer: Optimizer | MakeOptimizer | str | None, model: nn.Module
) -> MakeOptimizer | str | None:
    """A function that makes such an optimizer, with the same groups, of a copy's parameters."""
    optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
    if not isinstance(optimizer, Optimizer):
        return optimizer
    kind, given = type(optimizer), signature(type(optimizer)).parameters
    takes_all = any(each.kind is Parameter.VAR_KEYWORD for each in given.values())
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    places = {id(parameter): place for place, parameter in enumerate(trained)}

    def options(group: Mapping[str, Any]) -> dict[str, Any]:
        known = ((name, value) for name, value in group.items() if takes_all or name in given)
        return {
            name: FLOAT_RATE if isinstance(value, Tensor) else value
            for name, value in known
            if name != "params"
        }

    def make(parameters: Any) -> Optimizer:
        copies = list(parameters)
        groups = [
            {
                **options(group),
                "params": [
                    copies[places[id(each)]] for each in group["params"] if id(each) in places
                ],
            }
            for group in optimizer.param_groups
        ]
        return kind([group for group in groups if group["params"]], **options(optimizer.defaults))

    return make


def capture(model: nn.Module, captured: Callable[[Inputs, torch.dtype | None], None]) -> Any:
    """Call `captured` once, when the model is first called in training; returns the hook's handle.

    Validation before the first step is passed over.
    """

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled() and module.training:
            handle.remove()
            captured(Inputs(args, kwargs), autocast_dtype())

    handle = model.register_forward_pre_hook(before, with_kwargs=True)
    return handle


def autocast_dtype() -> torch.dtype | None:
    """Dtype of the autocast that is on here, for a GPU or for the host."""
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return torch.get_autocast_dtype(device)
    return None


def readable(inputs: Inputs) -> Inputs:
    """The same inputs; of those on a GPU, integers and booleans as copies on the host."""

    def host_copy(tensor: Tensor) -> Tensor:
        has_values = not (tensor.is_floating_point() or tensor.is_complex())
        is_read = tensor.is_cuda and has_values and tensor.nbytes <= MOST_READ_BYTES
        return tensor.cpu() if is_read else tensor

    def tree(value: Any) -> Any:
        return private.tree_map_only(Tensor, host_copy, value)

    return Inputs(tree(tuple(inputs.positional)), tree(dict(inputs.named)))

"""The caller's tensors as tensors on the virtual GPU, without an operator on the caller's own."""

import copy
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtally.errors import UsageError

PLAIN = (Tensor, nn.Parameter, nn.Buffer)
"""Types that are copied by shape. Any other class of tensor copies itself."""


@dataclass(frozen=True, slots=True)
class TensorDevices:
    """Devices of tensors, by their ids, as they were before the session.

    Within it "cuda" is the virtual GPU, and a tensor on a real one would be asked for its values.
    """

    devices: dict[int, str]

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> "TensorDevices":
        return cls({id(tensor): tensor.device.type for tensor in tensors})

    def on_gpu(self, tensor: Tensor) -> Tensor:
        """A tensor on the virtual GPU like this one: with its values where it is on the host."""
        if self.devices.get(id(tensor), tensor.device.type) == "cpu":
            moved = tensor.detach().to("cuda")
        else:
            moved = empty_like(tensor, tensor.dtype)
        return moved.requires_grad_(tensor.requires_grad)


def empty_like(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=dtype, device="cuda")


def model_on_gpu(
    model: nn.Module, devices: TensorDevices, weight_dtype: torch.dtype | None
) -> nn.Module:
    """A copy of the model on the virtual GPU, with floats in this dtype; None: in their own.

    Parameters have no values there, and the model itself is not touched. What modules share (tied
    weights) the copies share. Raises UsageError for a model that Python cannot copy.
    """
    if any(isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        raise UsageError(
            "TorchScript has no modules to account for: give the model it was scripted from."
        )
    memo: dict[int, Any] = {}
    is_whole = True
    for tensor in tensors_of(model):
        if type(tensor) not in PLAIN:
            is_whole = False
        elif isinstance(tensor, nn.Parameter):
            dtype = cast_of(tensor, weight_dtype)
            memo[id(tensor)] = nn.Parameter(empty_like(tensor, dtype), tensor.requires_grad)
        else:
            buffer = devices.on_gpu(tensor.detach() if tensor.requires_grad else tensor)
            memo[id(tensor)] = buffer.to(cast_of(tensor, weight_dtype))
    for tensor in results_in(model):
        memo[id(tensor)] = tensor.detach().clone()
    for empty in empty_dicts_in(model):
        memo[id(empty)] = type(empty)()
    try:
        copied = copy.deepcopy(model, memo)
    except Exception as error:
        raise UsageError(
            f"{type(model).__name__} cannot be copied ({type(error).__name__}: {error}).\n"
            "Give a function that builds it instead: summary(lambda: Model(...), ...)."
        ) from error
    return copied if is_whole else copied.to("cuda")


def cast_of(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype


def results_in(model: nn.Module) -> Iterator[Tensor]:
    """Results of operators that modules keep as attributes, which Python does not copy."""
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                yield value


def empty_dicts_in(model: nn.Module) -> Iterator[dict[Any, Any]]:
    """Empty dicts of hooks and children that a module does not have: ten of each, slow to copy
    generally.
    """
    for module in model.modules():
        for value in vars(module).values():
            if type(value) in (dict, OrderedDict) and not value:
                yield value


def tensors_of(model: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers, each once."""
    yield from model.parameters()
    yield from model.buffers()

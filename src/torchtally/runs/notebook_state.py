"""What exists before a cell of a notebook runs, to be as it was afterwards.

`model.to("cuda")` moves the caller's own model: on a simulated GPU its weights have no values, and
a notebook goes on after the cell. So tensors that had values get them back, under the same Python
objects: modules and optimizers hold these.
"""

import gc
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchtally import torch_private as private
from torchtally.virtual.storage import virtual_of


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A tensor with values, and what it shares them with."""

    tensor: Tensor
    values: Tensor
    """The same storage under another Python object."""
    gradient: Tensor | None


@dataclass(frozen=True, slots=True)
class NotebookState:
    """The tensors, modules and optimizers that live, and the names of a notebook."""

    tensors: tuple[HostTensor, ...]
    dictionaries: tuple[tuple[MutableMapping[Any, Any], dict[Any, Any]], ...]
    """Each with a copy: parameters and buffers of modules, state of optimizers, names."""

    @classmethod
    def of(cls, namespace: MutableMapping[str, Any]) -> "NotebookState":
        """What lives now."""
        living = gc.get_objects()
        with torch.no_grad():
            tensors = tuple(map(host_tensor, filter(is_real, living)))
        dictionaries = [namespace, *dictionaries_of(living)]
        return cls(tensors, tuple((each, dict(each)) for each in dictionaries))

    def restore(self) -> None:
        """Give the tensors their values back, and take virtual ones from where others were."""
        for saved in self.tensors:
            if is_virtual(saved.tensor):
                saved.values.requires_grad_(saved.tensor.requires_grad)
                private.swap_contents(saved.tensor, saved.values)
            if holds_virtual(saved.tensor.grad):
                saved.tensor.grad = saved.gradient
        for dictionary, before in self.dictionaries:
            for name, value in before.items():
                if not holds_virtual(value) and holds_virtual(dictionary.get(name)):
                    dictionary[name] = value
            for name in [name for name in dictionary if isinstance(name, Tensor)]:
                if name not in before and holds_virtual(dictionary[name]):
                    del dictionary[name]  # state that an optimizer has made on the GPU


def host_tensor(tensor: Tensor) -> HostTensor:
    return HostTensor(tensor, tensor.detach(), tensor.grad if tensor.is_leaf else None)


def dictionaries_of(living: Iterable[object]) -> Iterable[MutableMapping[Any, Any]]:
    """Those in which modules and optimizers keep tensors."""
    for each in living:
        if issubclass(type(each), nn.Module) and "_parameters" in vars(each):
            yield vars(each)["_parameters"]
            yield vars(each)["_buffers"]
        elif issubclass(type(each), Optimizer) and "state" in vars(each):
            yield vars(each)["state"]


def is_real(value: object) -> bool:
    """A plain tensor on the host or on a real device. Of proxies, types alone are asked."""
    kinds = (Tensor, nn.Parameter, nn.Buffer)
    return type(value) in kinds and not value.is_meta and value.layout is torch.strided  # type: ignore[attr-defined]


def is_virtual(value: object) -> bool:
    """A tensor without data of its own, within a session or after it."""
    return issubclass(type(value), Tensor) and virtual_of(value) is not None  # type: ignore[arg-type]


def holds_virtual(value: object) -> bool:
    """A virtual tensor, or an optimizer's state of them."""
    if type(value) is dict:
        return any(map(is_virtual, value.values()))
    return is_virtual(value)

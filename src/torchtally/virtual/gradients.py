"""`tensor.grad = ...` on the host, where one of the two has values and the other has none.

On the host a tensor is real, or on "meta" where its values are unknown. torch compares the devices
of a tensor and of its gradient (`THPVariable_set_grad`, torch/csrc/autograd/python_variable.cpp):
sharded parameters offloaded to the CPU get their gradients by assignment.
"""

from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.stand_ins import StandIn
from torchtally.virtual.storage import HostMemory, make_virtual


def stand_ins(mode: VirtualDispatch) -> list[StandIn]:
    native: Any = torch.Tensor.grad

    def set_gradient(tensor: Tensor, gradient: Tensor | None) -> None:
        if isinstance(gradient, Tensor) and differ_in_values(tensor, gradient):
            if private.is_meta(tensor):
                replace(gradient, without_values(gradient, mode.host))
            else:
                mode.observer.placeholder_given("aten._to_copy", "a gradient of zeros on the host")
                replace(gradient, zeros_like(gradient))
        native.__set__(tensor, gradient)

    return [
        StandIn(torch.Tensor, "grad", property(native.__get__, set_gradient, native.__delete__))
    ]


def differ_in_values(tensor: Tensor, gradient: Tensor) -> bool:
    """Both are on the host, and one alone is real."""
    if private.is_meta(tensor) == private.is_meta(gradient):
        return False
    return tensor.device.type == gradient.device.type == "cpu"


def replace(tensor: Tensor, other: Tensor) -> None:
    """Let a tensor be another, for all who have it; a wrapper holds what the other one holds."""
    private.swap_contents(tensor, other)
    for name in private.names_inside(tensor):
        if isinstance(getattr(other, name), Tensor):  # a device mesh is the same
            setattr(tensor, name, getattr(other, name))


def zeros_like(tensor: Tensor) -> Tensor:
    def zeros(held: Tensor) -> Tensor:
        return torch.zeros(held.shape, dtype=held.dtype).as_strided(held.shape, held.stride())

    with private.without_dispatch_modes():
        return private.with_inside(tensor, zeros)


def without_values(tensor: Tensor, host: HostMemory) -> Tensor:
    def unknown(held: Tensor) -> Tensor:
        meta = torch.empty_like(held, device="meta")
        make_virtual(meta, host)
        return meta

    with private.without_dispatch_modes():
        return private.with_inside(tensor, unknown)

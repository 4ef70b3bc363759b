"""The device that Python is shown of a tensor or a storage, and how users write devices.

The properties are set on torch's classes, so they hold in every thread, in hooks and in library
code. Inside an operator torch's shape functions read them, too, and get the meta device.
"""

from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.virtual.depth import INSIDE
from torchtally.virtual.storage import VirtualStorage, virtual_of

WRAPPED_ON = "_wrapped_on"
"""The attribute of a wrapper subclass's tensor with the device that it was made for."""


def shown_virtual(tensor: Tensor) -> VirtualStorage | None:
    """The virtual storage as Python sees it: None inside an operator."""
    if INSIDE.depth or not private.is_meta(tensor):
        return None
    return virtual_of(private.unwrap(tensor))


def device(tensor: Tensor) -> torch.device:
    virtual = shown_virtual(tensor)
    if virtual is not None:
        return virtual.home.device
    if type(tensor) not in private.PLAIN_TENSORS and not INSIDE.depth:
        wrapped_on: torch.device | None = vars(tensor).get(WRAPPED_ON)
        if wrapped_on is not None:
            return wrapped_on
        held = private.tensors_inside(tensor)  # a DTensor is made in C++
        if held and held[0] is not tensor:
            return device(held[0])
    return private.true_device(tensor)


def is_cuda(tensor: Tensor) -> bool:
    return device(tensor).type == "cuda"


def is_cpu(tensor: Tensor) -> bool:
    return device(tensor).type == "cpu"


def is_meta(tensor: Tensor) -> bool:
    return device(tensor).type == "meta"


def device_index(tensor: Tensor) -> int:
    """`get_device()`: the GPU's number, -1 on the host."""
    index = device(tensor).index
    return -1 if index is None or not is_cuda(tensor) else index


def as_device(device: Any) -> torch.device | None:
    """A device as users write it: "cuda:1", 1, torch.device; None for anything else."""
    if isinstance(device, torch.device):
        return device
    if isinstance(device, str):
        return torch.device(device)
    if isinstance(device, int) and not isinstance(device, bool):
        return torch.device("cuda", device)
    return None


BASE_STORAGE_DEVICE = private.StorageBase.device
BASE_STORAGE_POINTER = private.StorageBase.data_ptr


def shown_storage(storage: torch.UntypedStorage) -> VirtualStorage | None:
    return None if INSIDE.depth else getattr(storage, "virtual", None)


def storage_device(storage: torch.UntypedStorage) -> torch.device:
    virtual = shown_storage(storage)
    device: torch.device = (
        BASE_STORAGE_DEVICE.__get__(storage) if virtual is None else virtual.home.device
    )
    return device


def storage_is_cuda(storage: torch.UntypedStorage) -> bool:
    return storage_device(storage).type == "cuda"


def storage_data_ptr(storage: torch.UntypedStorage) -> int:
    virtual = shown_storage(storage)
    return int(BASE_STORAGE_POINTER(storage)) if virtual is None else virtual.address

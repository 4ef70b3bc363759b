"""Factories of tensors from Python values, which would need a real device."""

import warnings
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from torchtally import torch_private as private
from torchtally.virtual.device_type import Device
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.generators import generator_type
from torchtally.virtual.shown_devices import as_device
from torchtally.virtual.stand_ins import StandIn, as_function

HOST = torch.device("cpu")

COPY_CONSTRUCTED = (
    "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() "
    "or sourceTensor.detach().clone().requires_grad_(True), rather than "
    "torch.tensor(sourceTensor)."
)
"""torch's warning when a tensor is made of a tensor."""

NAMES = """
empty empty_permuted empty_strided ones arange bartlett_window blackman_window eye full
hamming_window hann_window kaiser_window linspace logspace normal rand randn randint randperm range
tril_indices triu_indices zeros scalar_tensor zeros_like ones_like empty_like full_like rand_like
randn_like randint_like
"""
"""Factories that take a device by its number; torch itself would ask which accelerator is meant."""


class Factories:
    """`torch.tensor` and its like: made on the host, then copied, as torch does for CUDA too."""

    def __init__(self, mode: VirtualDispatch) -> None:
        self.mode = mode
        self.native_tensor = torch.tensor
        self.native_as_tensor = torch.as_tensor
        self.native_asarray = torch.asarray

    def stand_ins(self) -> list[StandIn]:
        constructors = private.device_constructors()
        functions = {name: self.by_number(getattr(torch, name)) for name in NAMES.split()}
        functions |= {
            "tensor": as_function(self.tensor),
            "as_tensor": as_function(self.as_tensor),
            "asarray": as_function(self.asarray),
        }
        table = dict(private.builtin_table())
        for name, function in functions.items():
            table[id(function)] = table.get(id(getattr(torch, name)), f"aten::{name}")
        table[id(Device)] = table[id(torch.device)]
        return [
            StandIn(torch, "device", Device),
            StandIn(torch, "Generator", generator_type(torch.Generator, self.complete_device)),
            *(StandIn(torch, name, function) for name, function in functions.items()),
            # Device contexts know factories by identity (`DeviceContext.__torch_function__`), and
            # the native ones run below ours.
            StandIn(*private.DEVICE_CONSTRUCTORS, lambda: constructors),
            # So does torch.jit: code it compiles calls ours by the operator's name.
            StandIn(*private.BUILTIN_TABLE, table),
            # Parameters of lazy modules refuse functions they do not know, ours among them.
            StandIn(UninitializedTensorMixin, "shape", Tensor.shape),
            StandIn(
                UninitializedTensorMixin,
                "__torch_function__",
                classmethod(Tensor.__torch_function__.__func__),  # type: ignore[attr-defined]
            ),
        ]

    def by_number(self, native: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """A factory that takes a device's number for that CUDA device."""

        @wraps(native)
        def factory(*args: Any, **kwargs: Any) -> Tensor:
            if (device := kwargs.get("device")) is not None:
                target = kwargs["device"] = as_device(device)
                if target is not None and target.type == "cuda":
                    self.mode.check_place()
            return native(*args, **kwargs)

        return factory

    def complete_device(self, device: Any) -> torch.device:
        """A device as its user wrote it, with the number of the current one if it has none."""
        indexed = as_device(device) or HOST
        if indexed.type == "cuda" and indexed.index is None:
            return torch.device("cuda", self.mode.current_device)
        return indexed

    @staticmethod
    def target(device: Any, data: Any) -> torch.device:
        """The device requested, else the default one, else that of the data."""
        target = as_device(device) or private.default_device()
        if target is not None:
            return target
        return data.device if isinstance(data, Tensor) else HOST

    def tensor(self, data: Any, *, dtype: Any = None, device: Any = None,
               requires_grad: bool = False, pin_memory: bool = False) -> Tensor:  # fmt: skip
        target = self.target(device, data)
        if isinstance(data, Tensor):
            warnings.warn(COPY_CONSTRUCTED, UserWarning, stacklevel=3)
            tensor = data.detach().clone().to(target, dtype or data.dtype)
        elif target.type == "cuda":
            tensor = self.native_tensor(as_numbers(data), dtype=dtype, device=HOST).to(target)
        else:
            tensor = self.native_tensor(as_numbers(data), dtype=dtype, device=target)
        if pin_memory:
            tensor = tensor.pin_memory()
        return tensor.requires_grad_(requires_grad)

    def as_tensor(self, data: Any, dtype: Any = None, device: Any = None) -> Tensor:
        target = self.target(device, data)
        if isinstance(data, Tensor):
            return data.to(device=target, dtype=dtype or data.dtype)
        if target.type != "cuda":
            return self.native_as_tensor(as_numbers(data), dtype=dtype, device=target)
        return self.native_as_tensor(as_numbers(data), dtype=dtype, device=HOST).to(target)

    def asarray(self, obj: Any, *, dtype: Any = None, device: Any = None, copy: Any = None,
                requires_grad: bool = False) -> Tensor:  # fmt: skip
        target = self.target(device, obj)
        if isinstance(obj, Tensor) and "cuda" in (target.type, obj.device.type):
            tensor = obj.to(target, dtype or obj.dtype, copy=bool(copy))
            return tensor.detach().requires_grad_(requires_grad)
        if target.type != "cuda":
            return self.native_asarray(
                as_numbers(obj), dtype=dtype, device=target, copy=copy, requires_grad=requires_grad
            )
        tensor = self.native_asarray(as_numbers(obj), dtype=dtype, device=HOST).to(target)
        return tensor.requires_grad_(requires_grad)


def as_numbers(data: Any) -> Any:
    """Data with the tensors of a list of tensors read back, as torch does one by one."""
    if not isinstance(data, (list, tuple)) or not holds_tensors(data):
        return data
    return [item.tolist() if isinstance(item, Tensor) else as_numbers(item) for item in data]


def holds_tensors(data: Any) -> bool:
    """A list holds tensors, or its first element does."""
    if not isinstance(data, (list, tuple)) or not data:
        return False
    return any(isinstance(item, Tensor) for item in data) or holds_tensors(data[0])

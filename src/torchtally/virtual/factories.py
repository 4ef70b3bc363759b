"""Functions that make tensors from Python values and would ask a real device to hold them."""

from typing import Any

import torch
from torch import Tensor

from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.stand_ins import StandIn
from torchtally.virtual.tensors import as_device


class Factories:
    """`torch.tensor` and its like: made on the host, then copied, as torch does for CUDA too."""

    def __init__(self, mode: VirtualDispatch) -> None:
        self.mode = mode
        self.native_tensor = torch.tensor
        self.native_as_tensor = torch.as_tensor
        self.native_asarray = torch.asarray
        self.native_generator = torch.Generator

    def stand_ins(self) -> list[StandIn]:
        return [
            StandIn(torch, "tensor", self.tensor),
            StandIn(torch, "as_tensor", self.as_tensor),
            StandIn(torch, "asarray", self.asarray),
            StandIn(torch, "Generator", self.generator()),
        ]

    @staticmethod
    def target(device: Any) -> torch.device:
        """The device asked for, or the default one (`with torch.device("cuda")`)."""
        return as_device(device) or torch.get_default_device()

    def tensor(self, data: Any, *, dtype: Any = None, device: Any = None,
               requires_grad: bool = False, pin_memory: bool = False) -> Tensor:  # fmt: skip
        target = self.target(device)
        if target.type != "cuda":
            return self.native_tensor(data, dtype=dtype, device=target, requires_grad=requires_grad)
        if isinstance(data, Tensor):
            made = data.detach().clone().to(target, dtype or data.dtype)
        else:
            made = self.native_tensor(data, dtype=dtype, device="cpu").to(target)
        return made.requires_grad_(requires_grad)

    def as_tensor(self, data: Any, dtype: Any = None, device: Any = None) -> Tensor:
        if isinstance(data, Tensor):
            return data.to(device=as_device(device) or data.device, dtype=dtype or data.dtype)
        target = self.target(device)
        if target.type != "cuda":
            return self.native_as_tensor(data, dtype=dtype, device=target)
        return self.native_as_tensor(data, dtype=dtype, device="cpu").to(target)

    def asarray(self, obj: Any, *, dtype: Any = None, device: Any = None, copy: Any = None,
                requires_grad: bool = False) -> Tensor:  # fmt: skip
        target = self.target(device)
        if isinstance(obj, Tensor) and (obj.is_cuda or target.type == "cuda"):
            made = obj.to(as_device(device) or obj.device, dtype or obj.dtype, copy=bool(copy))
            return made.detach().requires_grad_(requires_grad)
        if target.type != "cuda":
            return self.native_asarray(
                obj, dtype=dtype, device=device, copy=copy, requires_grad=requires_grad
            )
        return (
            self.native_asarray(obj, dtype=dtype, device="cpu")
            .to(target)
            .requires_grad_(requires_grad)
        )

    def generator(self) -> Any:
        native = self.native_generator

        class Generator(native):  # type: ignore[misc, valid-type]
            """A generator of the virtual GPU is a host generator that says it is on it."""

            def __new__(cls, device: Any = "cpu") -> Any:
                made = native.__new__(cls, device="cpu")
                made._shown = as_device(device) or torch.device("cpu")
                return made

            def __init__(self, device: Any = "cpu") -> None:
                pass

            @property
            def device(self) -> torch.device:
                shown: torch.device = self._shown
                return shown

        return Generator

"""Moves of tensors between devices: `to`, `cuda`, `cpu`, `type`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.virtual import nested
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.invocation import META
from torchtally.virtual.shown_devices import as_device


class DeviceCopy(torch.autograd.Function):
    """A copy between devices; its gradient goes back to where the tensor came from.

    `ToCopyBackward0` (`_to_copy` in tools/autograd/derivatives.yaml) copies the gradient to
    `self.options()`, whose device is meta for host and GPU alike.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, moves: "Moves", keywords: Any) -> Tensor:
        ctx.here, ctx.dtype, ctx.moves = tensor.device, tensor.dtype, moves
        with private.below_autograd():
            return private.to_copy(tensor, **keywords)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.moves.move(gradient, ctx.here, ctx.dtype), None, None


class Moves:
    """Moves between the devices of a session."""

    def __init__(self, mode: VirtualDispatch) -> None:
        self.mode = mode
        self.native_to: Any = torch.Tensor.to
        self.native_type = torch.Tensor.type

    def to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`Tensor.to` in all its forms.

        The native one initialises CUDA for a "cuda" argument (python_variable_methods.cpp).
        """
        other = args[0] if args and isinstance(args[0], Tensor) else kwargs.get("other")
        if other is not None:
            rest = args[1:] if args and args[0] is other else args
            rest_kwargs = {name: arg for name, arg in kwargs.items() if name != "other"}
            return self.to(tensor, other.device, other.dtype, *rest, **rest_kwargs)
        copies = kwargs.pop("copy", False)
        flags = [at for at, arg in enumerate(args) if isinstance(arg, bool)]
        if len(flags) > 1:  # (..., non_blocking, copy)
            copies = args[flags[1]]
            args = args[: flags[1]]
        target, dtype, non_blocking, memory_format = self.parse_to(*args, **kwargs)
        return self.move(
            tensor, target, dtype, copies=copies, non_blocking=non_blocking, layout=memory_format
        )

    def parse_to(self, *args: Any, **kwargs: Any) -> Any:
        """(device, dtype, non_blocking, memory_format); a number is a GPU's index.

        Without a CUDA build torch would take the number for another accelerator's.
        """
        if args and isinstance(args[0], Tensor):
            return args[0].device, args[0].dtype, args[1] if len(args) > 1 else False, None
        if args and type(args[0]) is int:
            args = (torch.device("cuda", args[0]), *args[1:])
        if type(kwargs.get("device")) is int:
            kwargs = {**kwargs, "device": torch.device("cuda", kwargs["device"])}
        return private.parse_to(*args, **kwargs)

    def on_current(self, device: torch.device | None) -> torch.device | None:
        """`torch.device("cuda")` has no index and equals no tensor's device: the current one's."""
        if device is not None and device.type == "cuda" and device.index is None:
            return torch.device("cuda", self.mode.current_device)
        return device

    def move(
        self,
        tensor: Tensor,
        target: torch.device | None,
        dtype: torch.dtype | None = None,
        *,
        copies: bool = False,
        non_blocking: bool = False,
        layout: torch.memory_format | None = None,
    ) -> Tensor:
        here = tensor.device
        if "cuda" in (here.type, None if target is None else target.type):
            self.mode.check_place()
        target = self.on_current(target)
        if tensor.is_nested and target is not None and target.type == "cuda":
            nested.check_layout(tensor.layout)
        if here.type == "meta" and target is not None and target.type != "meta":
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        if target is not None and target.type == "meta" and here.type != "meta":
            kind = dtype or tensor.dtype
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind, device=META)
        if target is None or target == here or (target.type == here.type == "cpu"):
            # Nothing moves: torch's own `to`, which gives back the tensor itself if it can.
            kept = layout or torch.preserve_format
            to: Callable[..., Tensor] = self.native_to
            return to(tensor, dtype or tensor.dtype, copy=copies, memory_format=kept)
        keywords = {
            "dtype": dtype,
            "device": target,
            "non_blocking": non_blocking,
            "memory_format": layout,
        }
        if tensor.requires_grad and torch.is_grad_enabled():
            moved: Tensor = DeviceCopy.apply(tensor, self, keywords)  # type: ignore[no-untyped-call]
            return moved
        return private.to_copy(tensor, **keywords)

    def cuda(self, tensor: Tensor, device: Any = None, non_blocking: bool = False,
             memory_format: Any = None) -> Tensor:  # fmt: skip
        target = as_device(device) or torch.device("cuda")
        return self.move(tensor, target, non_blocking=non_blocking, layout=memory_format)

    def cpu(self, tensor: Tensor, memory_format: Any = None) -> Tensor:
        return self.move(tensor, torch.device("cpu"), layout=memory_format)

    def type(self, tensor: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
        """`type()` names the tensor's legacy type; `type("torch.cuda.HalfTensor")` moves it."""
        if dtype is None:
            name: str = self.native_type(torch.empty(0, dtype=tensor.dtype))
            return name.replace("torch.", "torch.cuda.") if tensor.is_cuda else name
        name = (
            dtype
            if isinstance(dtype, str)
            else f"{dtype.__module__}.{dtype.__name__}"
            if (isinstance(dtype, type))
            else ""
        )
        if not name:
            return self.native_to(tensor, dtype)
        target = torch.device("cuda" if ".cuda." in name else "cpu")
        element = self.native_type(torch.empty(0), name.replace(".cuda", "")).dtype
        return self.move(tensor, target, element, non_blocking=non_blocking)

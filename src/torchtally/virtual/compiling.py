"""`torch.compile` on the virtual GPU: the function runs eagerly, and the report says so.

What torch.compile returns keeps its shape: a module is wrapped, with the original as `_orig_mod`,
so that state dicts carry the prefix they would carry.
"""

import sys
from collections.abc import Sized
from typing import Any

import torch
from torch import nn

from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.stand_ins import StandIn

NOTE = "torch.compile ran eagerly: fusion would move fewer bytes and launch fewer kernels"


class EagerModule(nn.Module):
    """Stands for `torch._dynamo.OptimizedModule`: delegates to the module it wraps."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._modules["_orig_mod"] = module

    @property
    def __class__(self) -> type:  # type: ignore[override]
        """What `isinstance` is told: libraries unwrap what they take for a compiled module."""
        dynamo = sys.modules.get("torch._dynamo.eval_frame")
        return EagerModule if dynamo is None else dynamo.OptimizedModule

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._orig_mod(*args, **kwargs)

    def __len__(self) -> int:
        if not isinstance(self._orig_mod, Sized):
            raise TypeError(f"{type(self._orig_mod).__name__} does not support len()")
        return len(self._orig_mod)

    @property
    def training(self) -> bool:  # type: ignore[override]
        return bool(self._orig_mod.training)

    @training.setter
    def training(self, value: bool) -> None:
        if "_orig_mod" in self.__dict__.get("_modules", ()):  # not yet when nn.Module sets it
            self._orig_mod.training = value

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self._modules["_orig_mod"]
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name) or name in self.__dict__ or "_modules" not in self.__dict__:
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)


class Compiling:
    def __init__(self, mode: VirtualDispatch) -> None:
        self.mode = mode

    def stand_ins(self) -> list[StandIn]:
        return [
            StandIn(torch, "compile", self.compile),
            # It would import the compiler, which builds without CUDA do not have whole.
            StandIn(torch.compiler, "cudagraph_mark_step_begin", lambda: None),
            *unguarded(),
        ]

    def compile(self, model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: self.compile(function, **options)
        self.mode.observer.noted(NOTE)
        return EagerModule(model) if isinstance(model, nn.Module) else model


def unguarded() -> list[StandIn]:
    """Let functions that torch hides from its compiler run without importing it (1.3 s).

    `torch._disable_dynamo` wraps a function and imports the compiler when it is first called,
    unless the function says already what to run instead.
    """
    import torch.utils.checkpoint
    from torch.optim import Optimizer

    functions = (*vars(Optimizer).values(), *vars(torch.utils.checkpoint).values())
    guard = torch._compile.__file__
    guarded = [
        function.__wrapped__
        for function in functions
        if hasattr(function, "__wrapped__")
        and getattr(getattr(function, "__code__", None), "co_filename", "") == guard
    ]
    return [StandIn(function, "__dynamo_disable", function) for function in guarded]

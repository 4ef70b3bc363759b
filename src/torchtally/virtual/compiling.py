"""`torch.compile` on the virtual GPU: the function runs eagerly, and the report says so.

What torch.compile returns keeps its shape: a module is wrapped, with the original as `_orig_mod`,
so that state dicts carry the prefix they would carry.
"""

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
        self._orig_mod = module
        self.training = module.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._orig_mod(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self._modules["_orig_mod"]
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_orig_mod", "training") or name in self.__dict__:
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)


class Compiling:
    def __init__(self, mode: VirtualDispatch) -> None:
        self.mode = mode

    def stand_ins(self) -> list[StandIn]:
        return [StandIn(torch, "compile", self.compile), *unguarded()]

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

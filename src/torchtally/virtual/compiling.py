"""`torch.compile` on the virtual GPU: the function runs eagerly, with a note in the report.

What torch.compile returns keeps its shape: a module is wrapped, with the original as `_orig_mod`,
so that state dicts carry the prefix they would carry.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import nn

from torchtally import torch_private as private
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.stand_ins import StandIn

NOTE = "torch.compile ran eagerly: fusion would move fewer bytes and launch fewer kernels"


EAGER = "eager"
"""The backend that fuses nothing; torch's own operators on functions compile with it."""


class CompiledDepth(threading.local):
    """How deep this thread is inside of code that the script has compiled."""

    depth = 0


_INSIDE = CompiledDepth()


def is_compiled() -> bool:
    """What runs now would run as kernels that the compiler has made."""
    return _INSIDE.depth > 0


@contextmanager
def compiled_code() -> Iterator[None]:
    _INSIDE.depth += 1
    try:
        yield
    finally:
        _INSIDE.depth -= 1


def as_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with compiled_code():
            return function(*args, **kwargs)

    return run


class EagerModule(nn.Module):
    """Stands for `torch._dynamo.OptimizedModule`: delegates to the module it wraps."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._modules["_orig_mod"] = module

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """For `isinstance`: libraries unwrap compiled modules before they save or inspect them."""
        frames = private.compiler_frames()
        return EagerModule if frames is None else frames.OptimizedModule

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with compiled_code():
            return self._orig_mod(*args, **kwargs)

    def __len__(self) -> int:
        if not isinstance(self._orig_mod, Sized):
            raise TypeError(f"{type(self._orig_mod).__name__} does not support len()")
        return len(self._orig_mod)

    @property
    def training(self) -> bool:
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
            *dynamo_stand_ins(),
        ]

    def compile(self, model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: self.compile(function, **options)
        if is_eager(options.get("backend")):
            return EagerModule(model) if isinstance(model, nn.Module) else model
        self.mode.observer.note(NOTE)
        return EagerModule(model) if isinstance(model, nn.Module) else as_compiled(model)


def is_eager(backend: Any) -> bool:
    """By its name, or the function that the name stands for."""
    return EAGER in (backend, getattr(backend, "__name__", None))


def dynamo_stand_ins() -> list[StandIn]:
    """Keep code that opts out of compilation from importing the compiler (1.3 s)."""
    if private.DYNAMO in sys.modules:
        return []
    return [StandIn(Loaded(), private.DYNAMO, Deferred(private.DYNAMO))]


class Deferred(ModuleType):
    """Replaces `torch._dynamo`, and imports it when more of it is needed than is defined here.

    Every optimizer's step calls `graph_break` (torch/optim/optimizer.py), and many of torch's shape
    functions call `disable` on first use (`_disable_dynamo`, torch/_compile.py).
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._hidden: list[Any] = []

    def graph_break(self, msg: str = "") -> None: ...

    def is_compiling(self) -> bool:
        return False

    def disable(self, fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        if options.get("wrapping", True):
            return self._import().disable(fn, recursive, **options)
        self._hidden.append(fn)  # torch._disable_dynamo caches the answer as its attribute
        return fn

    def forget(self) -> None:
        """Let functions ask again."""
        for function in self._hidden:
            delattr(function, "__dynamo_disable")  # not by name: a class would mangle it
        self._hidden.clear()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # `inspect` looks these up in all modules
            raise AttributeError(name)
        return getattr(self._import(), name)

    def _import(self) -> ModuleType:
        if isinstance(sys.modules.get(private.DYNAMO), Deferred):
            del sys.modules[private.DYNAMO]
        return import_module(private.DYNAMO)


class Loaded:
    """`sys.modules` as an object whose attributes are the modules."""

    @property
    def __dict__(self) -> dict[str, ModuleType]:  # type: ignore[override]
        return sys.modules

    def __setattr__(self, name: str, module: ModuleType) -> None:
        sys.modules[name] = module

    def __delattr__(self, name: str) -> None:
        module = sys.modules.get(name)
        if isinstance(module, Deferred):  # not if it was needed after all
            module.forget()
            del sys.modules[name]

"""A function or module that the script compiles and that runs eagerly.

What torch.compile returns keeps its shape: a module is wrapped, with the original as `_orig_mod`,
so that state dicts carry the prefix they would carry.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

from torch import nn

from torchtally import torch_private as private


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


def eagerly(model: Any) -> Any:
    """What `torch.compile` returns of a module or a function, to run without being compiled."""
    return EagerModule(model) if isinstance(model, nn.Module) else as_compiled(model)


class EagerModule(nn.Module):
    """Stands for `torch._dynamo.OptimizedModule`: delegates to the module it wraps."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._modules["_orig_mod"] = module

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Class for `isinstance`: libraries unwrap compiled modules before they save or inspect
        them.
        """
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

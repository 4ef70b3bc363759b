"""`torch._dynamo` as it stands in `sys.modules` until a script needs it."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from torchtally import torch_private as private
from torchtally.virtual.stand_ins import StandIn, suspend


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
        with suspend():  # it binds torch's functions, and tells them apart by identity
            return import_module(private.DYNAMO)


class Loaded:
    """`sys.modules` as an object whose attributes are the modules."""

    @property
    def __dict__(self) -> dict[str, ModuleType]:  # type: ignore[override]
        return sys.modules

    def __setattr__(self, name: str, module: ModuleType) -> None:
        sys.modules.setdefault(name, module)  # not over what was imported in the meantime

    def __delattr__(self, name: str) -> None:
        module = sys.modules.get(name)
        if isinstance(module, Deferred):  # not if it was needed after all
            module.forget()
            del sys.modules[name]

"""The module whose forward is running, by its path in the outermost module called."""

import sys
import threading
import weakref
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule

from torchtally import torch_private as private
from torchtally.tracer.source import Outer, Stacks
from torchtally.virtual.compiling.eager import EagerModule
from torchtally.virtual.own_code import never_compiled
from torchtally.virtual.stand_ins import StandIn


class Place:
    """A module as ops are attributed to it: its path and its class."""

    __slots__ = ("class_name", "is_by_holder", "outer", "path")

    def __init__(self, path: str, class_name: str, *, is_by_holder: bool = False) -> None:
        self.path = path
        self.class_name = class_name
        self.is_by_holder = is_by_holder
        """Modules share the module, and the path is in the one that called it; so it is for what
        is inside it."""
        self.outer: int | None = None
        """The number of the stack above the module's latest call. Not the stack, whose frames would
        keep what they hold: a loss, below the engine."""


OUTSIDE = Place("", "")
COMPILERS = (private.DYNAMO, EagerModule.__module__)
WRAPPED = "_orig_mod"
"""What a compiled module calls the module that it stands for."""


class Running(threading.local):
    """The modules whose forward is running on this thread, innermost last.

    With the stack above each call: an operator's walk up the stack ends there.
    """

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.modules: list[nn.Module] = []
        self.outers: list[Outer] = []


class Modules:
    """Names every module from the outermost one called, and keeps the stack of running ones."""

    def __init__(self, stacks: Stacks, root_called: Callable[[nn.Module], None]) -> None:
        self._stacks = stacks
        self._places: weakref.WeakKeyDictionary[nn.Module, Place] = weakref.WeakKeyDictionary()
        self._running = Running()
        self._root_called = root_called
        self._shared: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        """Those that several modules hold."""
        self._by_path: dict[str, Place] = {}
        self._by_id: dict[int, Place] = {}
        """Of modules, which the compiler names by their ids. A new one overwrites a dead one's."""
        self.call_code: CodeType | None = None
        """Of a module's call, once it is replaced."""

    @property
    def place(self) -> Place:
        places = self._running.places
        return places[-1] if places else OUTSIDE

    @property
    def outer(self) -> Outer | None:
        """The stack above the innermost running module's call."""
        outers = self._running.outers
        return outers[-1] if outers else None

    def place_of(self, module: nn.Module) -> Place | None:
        """Path of a module that has been called, or that is in one."""
        return self._places.get(module)

    def with_id(self, number: int) -> Place | None:
        """Path of the module with this id, if it has been called or is in one that was."""
        return self._by_id.get(number)

    def at(self, path: str) -> Place:
        """The module of that path, if it is known."""
        return self._by_path.get(path, OUTSIDE)

    def stand_ins(self) -> list[StandIn]:
        native_call = nn.Module.__call__
        modules = self

        # Of a profiler with stacks, which takes `self` in a frame of this code for the module, be
        # it a closure's (`recordPyCall`, torch/csrc/autograd/profiler_python.cpp).
        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if modules._is_of_compiler(self):
                return native_call(self, *args, **kwargs)
            modules._enter(self, sys._getframe(1))
            try:
                return native_call(self, *args, **kwargs)
            finally:
                modules._leave()

        # Dynamo would wrap a function that it does not look into, unless it has this name
        # (`_TorchDynamoContext.__call__`, torch/_dynamo/eval_frame.py).
        call.__name__ = native_call.__name__
        self._stacks.mark_module_call(call.__code__)
        self.call_code = call.__code__
        return [StandIn(nn.Module, "__call__", call)]

    @never_compiled
    def _is_of_compiler(self, module: nn.Module) -> bool:
        """What `torch.compile` puts around modules of the script, and between them: a graph that
        is in none of its modules.
        """
        if isinstance(module, GraphModule):
            return bool(self._running.places) and module not in self._places
        return type(module).__module__.startswith(COMPILERS)

    @never_compiled
    def _enter(self, module: nn.Module, caller: FrameType) -> None:
        stack, outers = self._running.places, self._running.outers
        place = self._places.get(module)
        if place is None or not stack:
            place = self._enter_root(module, place, is_outermost=not stack)
        elif stack[-1].is_by_holder or module in self._shared:
            place = self._place_by_holder(module, place)
        outer = self._stacks.enter(caller, outers[-1] if outers else None)
        place.outer = outer.number
        stack.append(place)
        self._running.modules.append(module)
        outers.append(outer)

    def _leave(self) -> None:
        self._running.places.pop()
        self._running.modules.pop()
        self._running.outers.pop()

    def _enter_root(
        self, module: nn.Module, existing: Place | None, *, is_outermost: bool
    ) -> Place:
        """Name a module that has no name yet, and all modules below it."""
        if is_outermost:
            self._root_called(module)
        if existing is not None:
            return existing
        class_name = private.class_name(module)
        prefix = "" if is_outermost else f"{self.place.path}.{class_name}".lstrip(".")
        for name, child in module.named_modules():
            path = ".".join(part for part in (prefix, *name.split(".")) if part and part != WRAPPED)
            place = self._places.setdefault(child, Place(path, private.class_name(child)))
            self._by_path[path] = self._by_id[id(child)] = place
        self._shared.update(_held_by_several(module))
        return self._places[module]

    def _place_by_holder(self, module: nn.Module, first: Place) -> Place:
        """The place of a shared module, or of what is in one, in the innermost running module that
        holds it: by its own name for it, else by the first one below it.
        """
        running = self._running
        for holder, around in zip(reversed(running.modules), reversed(running.places), strict=True):
            name = _name_in(holder, module)
            if name is None:
                continue
            path = ".".join(part for part in (around.path, *name.split(".")) if part != WRAPPED)
            path = path.lstrip(".")
            if path == first.path:
                return first
            place = self._by_path.get(path)
            if place is None or not place.is_by_holder:
                place = Place(path, first.class_name, is_by_holder=True)
                self._by_path[path] = place
            return place
        return first


def _held_by_several(module: nn.Module) -> list[nn.Module]:
    """Modules below this one that are the child of more than one of them."""
    held: set[nn.Module] = set()
    several: list[nn.Module] = []
    for holder in module.modules():
        for child in dict.fromkeys(holder.children()):
            (several.append if child in held else held.add)(child)
    return several


def _name_in(holder: nn.Module, module: nn.Module) -> str | None:
    """The name of a module among a holder's children, else among all below it; None for others."""
    for named in (holder.named_children(), holder.named_modules()):
        for name, child in named:
            if child is module:
                return name
    return None


def named_tensors(module: nn.Module) -> list[tuple[str, Tensor, bool]]:
    """(path, tensor, is a parameter) of all parameters and buffers."""
    parameters = [(name, p, True) for name, p in module.named_parameters()]
    buffers = [(name, b, False) for name, b in module.named_buffers()]
    return parameters + buffers

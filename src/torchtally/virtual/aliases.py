"""Replace functions that loaded modules have imported by name (`from os import remove`)."""

import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

LEFT_ALONE = ("torchtally", "importlib", "_frozen_importlib", "_frozen_importlib_external", "posix",
              "nt", "_io", "time")  # fmt: skip
"""Ours, and what imports modules: compiled code is Python's own cache, which the guard watches."""
CLASSES = frozenset({"glob", "pathlib", "shutil", "tempfile"})
"""Modules of Python's whose classes have such functions as static methods."""


@contextmanager
def replacing(values: Mapping[Any, Any]) -> Iterator[None]:
    """Within, what loaded modules have of these functions is the new value.

    Afterwards it is the old one, also in modules that were loaded within.
    """
    replace(values)
    try:
        yield
    finally:
        replace({new: old for old, new in values.items()})


def replace(values: Mapping[Any, Any]) -> None:
    """Replace objects in all modules."""
    _imported.read_modules()
    for old, new in values.items():
        _imported.replace(old, new)


class ImportedFunctions:
    """Callables that loaded modules have, by name: where each stands, by its id.

    Programs load thousands of modules, and a process may trace thousands of functions: each module
    is read once, and again when its number of names has changed. A name that was given another
    value meanwhile is not found; what the script then does by it, the guard sees.
    """

    def __init__(self) -> None:
        self._read: dict[int, tuple[weakref.ref[ModuleType], int]] = {}
        """By a module's id: the module, and how many names it had."""
        self._places: dict[int, list[tuple[weakref.ref[Any], str]]] = {}

    def read_modules(self) -> None:
        """Read those that are new, or have other names."""
        for name, module in list(sys.modules.items()):
            if not isinstance(module, ModuleType) or name.partition(".")[0] in LEFT_ALONE:
                continue
            count = len(vars(module))
            known = self._read.get(id(module))
            if known is None or known[1] != count or known[0]() is not module:
                self._read[id(module)] = weakref.ref(module), count
                self._read_module(name, module)

    def _read_module(self, name: str, module: ModuleType) -> None:
        self._read_owner(module)
        if name.partition(".")[0] in CLASSES:
            for owner in list(vars(module).values()):
                if isinstance(owner, type) and owner.__module__ == name:
                    self._read_owner(owner)

    def _read_owner(self, owner: Any) -> None:
        reference, places = weakref.ref(owner), self._places
        for attribute, value in list(vars(owner).items()):
            function = function_of(value)
            if callable(function):
                places.setdefault(id(function), []).append((reference, attribute))

    def replace(self, old: Any, new: Any) -> None:
        """Give every name that has the one object the other."""
        for reference, attribute in self._places.pop(id(old), ()):
            owner = reference()
            value = vars(owner).get(attribute) if owner is not None else None
            if owner is not None and function_of(value) is old:
                setattr(owner, attribute, staticmethod(new) if value is not old else new)
                self._places.setdefault(id(new), []).append((reference, attribute))


def function_of(value: Any) -> Any:
    """A static method's function. By the type alone: objects may warn of being asked anything."""
    return value.__func__ if type(value) is staticmethod else value


_imported = ImportedFunctions()

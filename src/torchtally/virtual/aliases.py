"""Replace functions that loaded modules have imported by name (`from os import remove`)."""

import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any, TypeVar

LEFT_ALONE = tuple(
    """
    torchtally importlib _frozen_importlib _frozen_importlib_external posix nt _io time
    """.split()
)
"""Ours, and what imports modules: compiled code is Python's own cache, which the guard watches."""
CLASSES = frozenset({"glob", "pathlib", "shutil", "tempfile"})
"""Modules of Python's whose classes have such functions as static methods."""


@contextmanager
def replacing(values: Mapping[Any, Any]) -> Iterator[None]:
    """Context in which loaded modules have the new value of these functions.

    Afterwards it is the old one, also in modules that were loaded within.
    """
    replace(values)
    try:
        yield
    finally:
        replace({new: old for old, new in values.items()})


T = TypeVar("T")


class ReadOnce(AbstractContextManager[T]):
    """A context that is entered, and left, with one look at the loaded modules for all that is
    replaced meanwhile: no code of the script runs in between.
    """

    def __init__(self, context: AbstractContextManager[T]) -> None:
        self._context = context

    def __enter__(self) -> T:
        with _imported.read_once():
            return self._context.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        with _imported.read_once():
            return self._context.__exit__(*error)


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
        self._read: dict[str, tuple[weakref.ref[ModuleType], set[int]]] = {}
        """By a module's name: the module, and how many names it had whenever it was read: a
        session adds names to some modules, and takes them away.
        """
        self._places: dict[int, list[tuple[weakref.ref[Any], str]]] = {}
        self._is_read_once = False
        self._module_count = 0
        """How many were loaded when they were last looked at; 0: look at them again."""

    @contextmanager
    def read_once(self) -> Iterator[None]:
        """Context in which modules are looked at again only where some were loaded or removed."""
        self._is_read_once, self._module_count = True, 0
        try:
            yield
        finally:
            self._is_read_once = False

    def read_modules(self) -> None:
        """Read those that are new, or have other names."""
        modules, read = sys.modules, self._read
        if self._is_read_once and len(modules) == self._module_count:
            return
        self._module_count = len(modules)
        for name in list(modules):  # thousands, of which hardly any has changed
            module, known = modules.get(name), read.get(name)
            if known is not None and known[0]() is module and len(vars(module)) in known[1]:
                continue
            # By its type: a library of cffi's says that it is a module (`__class__`), makes its
            # functions when it is asked for their names, and takes no weak reference.
            if module is not None and issubclass(type(module), ModuleType):
                if known is None or known[0]() is not module:
                    known = read[name] = weakref.ref(module), set()
                known[1].add(len(vars(module)))
                if name.partition(".")[0] not in LEFT_ALONE:
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


def read_loaded_modules() -> None:
    """Reads loaded modules as a session does that begins: processes forked from this one then need
    not.
    """
    _imported.read_modules()

"""Replace functions that loaded modules have imported by name (`from os import remove`)."""

import sys
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
    replace({id(old): new for old, new in values.items()})
    try:
        yield
    finally:
        replace({id(new): old for old, new in values.items()})


def replace(values: Mapping[int, Any]) -> None:
    """Replace objects by their ids, in all modules."""
    for name, module in list(sys.modules.items()):
        package = name.partition(".")[0]
        if package in LEFT_ALONE or not isinstance(module, ModuleType):
            continue
        # Thousands of modules with a hundred names each: looked through without a loop in Python.
        if not values.keys().isdisjoint(map(id, list(vars(module).values()))):
            replace_in(module, values)
        if package in CLASSES:
            for owner in list(vars(module).values()):
                if isinstance(owner, type) and owner.__module__ == name:
                    replace_in(owner, values)


def replace_in(owner: Any, values: Mapping[int, Any]) -> None:
    """Replace in a module or a class."""
    for attribute, value in list(vars(owner).items()):
        is_static = type(value) is staticmethod
        new = values.get(id(value.__func__ if is_static else value))
        if new is not None:
            setattr(owner, attribute, staticmethod(new) if is_static else new)

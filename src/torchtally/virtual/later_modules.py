"""What is replaced in modules that the script may import later, or has imported already."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from torchtally.virtual.aliases import replace, replacing
from torchtally.virtual.stand_ins import StandIn, apply

Replacements = Callable[[ModuleType], list[StandIn]]
"""What to replace once a module is loaded."""


def first_spec(
    finders: Iterable[Any], name: str, path: Any = None, target: Any = None
) -> ModuleSpec | None:
    """Spec of the first finder that has the module. One that lacks `find_spec`, as before Python
    3.4, is passed by, as Python does (`_find_spec`, importlib/_bootstrap.py).
    """
    finders = [finder for finder in finders if hasattr(finder, "find_spec")]
    specs = (finder.find_spec(name, path, target) for finder in finders)
    return next((spec for spec in specs if spec is not None), None)


class Patches:
    """A finder that lets others find a module, and replaces its functions once it is loaded."""

    def __init__(self, patches: Sequence[tuple[str, Replacements]], stack: ExitStack) -> None:
        self._patches = patches
        self._stack = stack
        self._names = {name for name, _ in patches}
        self._busy: set[str] = set()
        self.replaced_late: dict[Any, Any] = {}
        """Functions of modules that were loaded within, and what each is now."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self._names or name in self._busy:
            return None
        self._busy.add(name)
        try:
            others = (finder for finder in sys.meta_path if finder is not self)
            spec = first_spec(others, name, path, target)
        finally:
            self._busy.discard(name)
        execute: Any = getattr(spec and spec.loader, "exec_module", None)
        if spec is not None and execute is not None:

            def exec_module(module: ModuleType) -> None:
                execute(module)
                self.replaced_late |= self.patch(module)

            spec.loader.exec_module = exec_module  # type: ignore[union-attr,method-assign]
        return spec

    def patch(self, module: ModuleType) -> dict[Any, Any]:
        """Replace what is to be replaced; the module's own functions, and what each is now."""
        replaced: dict[Any, Any] = {}
        for name, replacements in self._patches:
            if name == module.__name__:
                stand_ins = replacements(module)
                own = [each for each in stand_ins if each.owner is module]
                replaced |= {getattr(module, each.name): each.value for each in own}
                self._stack.enter_context(apply(stand_ins))
        return replaced


@contextmanager
def patching(patches: Sequence[tuple[str, Replacements]]) -> Iterator[None]:
    """Context in which each named module has its replacements, from its import on."""
    with ExitStack() as stack:
        finder = Patches(patches, stack)
        replaced: dict[Any, Any] = {}
        for name in dict.fromkeys(name for name, _ in patches):
            module = sys.modules.get(name)  # None where a program has blocked the import
            if module is not None:
                replaced |= finder.patch(module)
        if replaced:  # others may have imported these functions by name
            stack.enter_context(replacing(replaced))
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            if finder.replaced_late:  # modules loaded within have imported these by name
                replace({new: old for old, new in finder.replaced_late.items()})

"""C++ extensions that the script compiles: minutes in which no operator runs."""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torchtally.virtual.later_modules import Replacements
from torchtally.virtual.stand_ins import StandIn

MODULE = "torch.utils.cpp_extension"
BUILDERS = ("load", "load_inline")


class Builds:
    """Those that are being built."""

    def __init__(self) -> None:
        self._names: list[str] = []

    @property
    def current(self) -> str:
        """The name of the one that began last; "" where none is being built."""
        return self._names[-1] if self._names else ""

    def patches(self) -> list[tuple[str, Replacements]]:
        return [(MODULE, self.stand_ins)]

    def stand_ins(self, module: ModuleType) -> list[StandIn]:
        return [StandIn(module, name, self.noting(getattr(module, name))) for name in BUILDERS]

    def noting(self, native: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(native)
        def build(name: str, *args: Any, **options: Any) -> Any:
            self._names.append(str(name))
            try:
                return native(name, *args, **options)
            finally:
                self._names.pop()

        return build

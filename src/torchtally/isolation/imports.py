"""Modules that the script has written in this run, and imports."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from torchtally.isolation.overlay import Overlay


class WrittenModules:
    """Finds modules that the script has written in this run."""

    def __init__(self, overlay: Overlay) -> None:
        self._overlay = overlay

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if self._overlay.is_clean:
            return None
        places = [
            self._overlay.upper(self._overlay.resolve(place or self._overlay.start))
            for place in (sys.path if path is None else path)
            if not place or place.startswith("/")
        ]
        PathFinder.invalidate_caches()
        return PathFinder.find_spec(name, places)


@contextmanager
def importing_written(overlay: Overlay) -> Iterator[None]:
    """Context in which the script can import modules that it has written."""
    finder = WrittenModules(overlay)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)

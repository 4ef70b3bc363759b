"""What CPython announces of what Python code does (audit events), told to what watches a run."""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any

from torchtally.trace import EffectKind

Check = Callable[[Any, str, tuple[Any, ...], FrameType], None]
"""Takes who watches, the event, its arguments and the frame in which it happens."""
Report = Callable[[EffectKind, str, FrameType | None], None]
"""Told of what the script did outside of its GPU, and in which frame."""
_watching: dict[str, Any] = {}
"""Who watches now, by kind."""
_installed: set[str] = set()


def watching(kind: str) -> Any:
    return _watching.get(kind)


def watch(kind: str, watcher: Any, checks: Mapping[str, Check]) -> Any:
    """Tells `watcher`, from now on, of some events, or stops to (None); returns who was told
    before. A hook cannot be taken away again: there is one of a kind for the process.
    """
    if kind not in _installed:
        sys.addaudithook(partial(_hook, checks, kind, _watching, sys._getframe))
        _installed.add(kind)
    before = _watching.get(kind)
    _watching[kind] = watcher
    return before


def _hook(
    checks: Mapping[str, Check],
    kind: str,
    watching: Mapping[str, Any],
    frame_of: Callable[[int], FrameType],
    event: str,
    args: tuple[Any, ...],
) -> None:
    """Reads no global name: Python sets a module's to None at exit, and goes on calling hooks."""
    check = checks.get(event)
    if check is not None and (watcher := watching.get(kind)) is not None:
        check(watcher, event, args, frame_of(1))

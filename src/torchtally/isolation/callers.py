"""Who calls a stand-in: the script, or code of ours that wants the file system as it is.

Told by the stack alone, so that nothing can be left behind by an exception that a signal's handler
raises within a stand-in: whatever the script has called there (a handler, a finalizer,
`__fspath__`) is the script.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torchtally
from torchtally.virtual import stand_ins

PACKAGE = os.path.dirname(torchtally.__file__) + os.sep
ROOM = os.path.dirname(__file__) + os.sep
LIBRARY = os.path.dirname(threading.__file__) + os.sep
"""Python's own modules: they act for whoever has called them."""
ACTS_FOR_OTHERS, IS_OURS, IS_TALLY, IS_OTHER = range(4)


def kind_of(file: str) -> int:
    if file == stand_ins.__file__ or file.startswith("<frozen "):
        return ACTS_FOR_OTHERS
    if file.startswith(PACKAGE):
        return IS_OURS if file.startswith(ROOM) else IS_TALLY
    is_library = file.startswith(LIBRARY) and "-packages" + os.sep not in file
    return ACTS_FOR_OTHERS if is_library else IS_OTHER


_kinds: dict[str, int] = {}


def _kind(frame: FrameType) -> int:
    file = frame.f_code.co_filename
    kind = _kinds.get(file)
    if kind is None:
        kind = _kinds[file] = kind_of(file)
    return kind


class Ours:
    """Threads in which all of tally is ours, by their identifiers."""

    threads: dict[int, int] = {}  # noqa: RUF012

    @classmethod
    @contextmanager
    def thread(cls) -> Iterator[None]:
        """Context in which this thread does the work of tally."""
        ident = threading.get_ident()
        cls.threads[ident] = cls.threads.get(ident, 0) + 1
        try:
            yield
        finally:
            cls.threads[ident] -= 1
            if not cls.threads[ident]:
                del cls.threads[ident]


def for_script(function: Callable[..., Any], *args: Any) -> Any:
    """Call a native function in a stand-in: what that calls in turn is called by the script."""
    return function(*args)


def is_ours(frame: FrameType | None) -> bool:
    """Whether code of ours has called, from this frame on."""
    if frame is not None and frame.f_code is for_script.__code__:
        return True
    while frame is not None:
        if frame.f_code is for_script.__code__:
            return False
        kind = _kind(frame)
        if kind == IS_TALLY:
            return threading.get_ident() in Ours.threads
        if kind != ACTS_FOR_OTHERS:
            return kind == IS_OURS
        frame = frame.f_back
    return False


def have_called(frame: FrameType | None) -> bool:
    """Whether code of ours has called a stand-in, whose own frames come first."""
    while frame is not None and _kind(frame) == IS_OURS:
        frame = frame.f_back
    return is_ours(frame)

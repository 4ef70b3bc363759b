"""Errors about paths as the script gave them, and what flags and descriptors say."""

import fcntl
import os
import re
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from torchtally.isolation.natives import OS
from torchtally.virtual.script_time import SCRIPT_TIME

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
"""Flags of a file that is opened to be changed."""


class naming:  # noqa: N801 (a context, made without a generator since it is entered often)
    """Errors raised within are about these paths, as the script gave them."""

    __slots__ = ("paths",)

    def __init__(self, *paths: Any) -> None:
        self.paths = paths

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, OSError) and error.filename is not None:
            error.filename = self.paths[0]
            if len(self.paths) > 1:
                error.filename2 = self.paths[1]


def led(
    native: Callable[..., Any], *, paths: int = 1, looks: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have a method take the place of a function of `os`, for callers whose files are led. Its
    errors are about its first arguments; one that `looks` has nothing to see before a first change.
    """

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(native)
        def stand_in(self: Any, *args: Any, **options: Any) -> Any:
            given = (*args, *options.values())[:paths]
            files = self.files
            is_clean = looks and (files.overlay.is_clean or (given and isinstance(given[0], int)))
            if is_clean or files.is_off:
                return native(*args, **options)
            with SCRIPT_TIME.stopped(), naming(*given):
                return method(self, *args, **options)

        return stand_in

    return decorate


def error_of(number: int, path: Any) -> OSError:
    return OSError(number, os.strerror(number), path)


def real_path_of(descriptor: int) -> str:
    """Path at which the file system has an open file. Raises OSError for one that it has not."""
    if sys.platform == "darwin":
        name = fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024))  # type: ignore[attr-defined]
        return os.fsdecode(name.rstrip(b"\0"))
    return str(OS.readlink(f"/proc/self/fd/{descriptor}"))


def is_exclusive(flags: int) -> bool:
    return bool(flags & os.O_CREAT and flags & os.O_EXCL)


def is_unnamed(flags: int) -> bool:
    """A file without a name in the directory that is opened (O_TMPFILE)."""
    unnamed = getattr(os, "O_TMPFILE", 0)
    return bool(unnamed) and flags & unnamed == unnamed


def is_writing(mode: str) -> bool:
    return not set("wax+").isdisjoint(mode)


OPEN_FILE = re.compile(r"/proc/(?:self|(\d+))/(?:task/\d+/)?fd/(\d+)")


def is_open_file(path: str) -> bool:
    """Whether a path is of a link to an open file, whose text is no path."""
    return path.startswith("/proc/") and OPEN_FILE.fullmatch(path) is not None


def open_file_at(path: str) -> int | None:
    """The number of this process's open file at a path, as of /dev/stdout."""
    found = OPEN_FILE.fullmatch(path)
    if found is None or found[1] not in (None, str(os.getpid())):
        return None
    return int(found[2])

"""Calls of the operating system that fail, in this process, by their number."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

CALLS = ("open", "write", "fsync", "mkdir", "rename", "unlink", "rmdir", "listdir")
TAKING_SPACE = ("open", "write", "fsync", "mkdir", "rename")


@dataclass
class Faults:
    """Calls that were made, and which of them have failed."""

    calls: int = 0
    failed: list[str] = field(default_factory=list)


@contextmanager
def failing(
    number: int, error: int, *, names: tuple[str, ...] = CALLS, ever_after: bool = False
) -> Iterator[Faults]:
    """The so many-th of these calls fails, or every one from there on."""
    faults = Faults()

    def doomed(name: str, native: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            faults.calls += 1
            at = faults.calls - 1
            if at == number or (ever_after and at > number):
                faults.failed.append(name)
                raise OSError(error, os.strerror(error))
            return native(*args, **options)

        return call

    native = {name: getattr(os, name) for name in names}
    for name, function in native.items():
        setattr(os, name, doomed(name, function))
    try:
        yield faults
    finally:
        for name, function in native.items():
            setattr(os, name, function)

"""Temporary files are real: what `tempfile` makes in the system's directory, and all below it."""

import os
import tempfile
from collections.abc import Callable
from functools import wraps
from typing import Any

from torchtally.isolation.files import Files
from torchtally.virtual.stand_ins import StandIn

MAKERS = ("mkdtemp", "_mkstemp_inner")
"""Functions that make a name nobody has, and all others of the module call."""


def temporary_files(files: Files) -> list[StandIn]:
    """What is replaced in `tempfile`."""
    return [StandIn(tempfile, name, announce(files, getattr(tempfile, name))) for name in MAKERS]


def announce(files: Files, native: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(native)
    def make(*args: Any, **options: Any) -> Any:
        files.inside.temporary += 1
        try:
            return native(*args, **options)
        finally:
            files.inside.temporary -= 1

    return make


def system_directory() -> str:
    """Where temporary files go; found by writing one, hence asked for before a run."""
    return os.path.realpath(tempfile.gettempdir())

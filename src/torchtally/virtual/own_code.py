"""Code of this package, which torch's compiler meets below the script's."""

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

ROOMS = tuple(
    f"torchtally.{room}"
    for room in ("chips", "isolation", "memory", "progress", "runs", "steps", "timing", "trace",
                 "tracer", "torch_private.gpu", "torch_private.groups",
                 "torch_private.names", "torch_private.shards", "virtual")
)  # fmt: skip
"""Packages whose frames the compiler does not look into, but what they call. That of `take_for`
(torch_private/compiler.py) it is to inline."""

uncompiled: list[Callable[..., Any]] = []
"""Functions below which it looks into nothing. Code of the script does not run there."""


def never_compiled(function: F) -> F:
    """Register one; the function stays as it is."""
    uncompiled.append(function)
    return function

"""Values as plain JSON data, for manifests and logs, and the versions that results depend on."""

import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

Say = Callable[[str], None]
"""Prints a message for the user."""


def versions() -> dict[str, str]:
    """Versions of everything that affects results."""
    packages = {"python": platform.python_version(), "platform": platform.platform()}
    for name in ("torchtally", "torch", "numpy"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    return {**packages, "cuda": str(torch.version.cuda)}


def as_json(value: Any) -> Any:
    """The value in JSON's types.

    NaN, inf and -inf become the strings "NaN", "Infinity" and "-Infinity", as in protobuf's JSON;
    Python's float() and JavaScript's Number() read them back. Unknown types become their str().
    """
    match value:
        case Enum():
            return as_json(value.value)
        case float():
            if math.isfinite(value):
                return float(value)
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case None | bool() | int() | str():
            return value
        case Mapping():
            return {str(key): as_json(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [as_json(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {member.name: as_json(getattr(value, member.name)) for member in fields(value)}
    return str(value)


def from_json(value: Any) -> Any:
    """A logged value; the strings for NaN and inf become floats."""
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value

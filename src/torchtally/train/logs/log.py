"""The interface of a log, the names of logs, and the header of a run."""

import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum, StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol, runtime_checkable

import torch

LogValue = float | int | str
Say = Callable[[str], None]
"""Prints a message for the user."""

SCHEMA_VERSION = 1
"""Of log.jsonl. Readers refuse higher versions."""


@runtime_checkable
class Log(Protocol):
    """Receives the values of steps."""

    def write(self, step: int, values: Mapping[str, LogValue]) -> None:
        """Log the values of a step, named as in `names`. A step may occur more than once."""

    def close(self) -> None:
        """Flush and close."""


class NoLog:
    """Discards everything: the log of all ranks but the first."""

    def write(self, step: int, values: Mapping[str, LogValue]) -> None: ...
    def close(self) -> None: ...


class LogName(StrEnum):
    """Logs besides log.jsonl."""

    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    TRACKIO = "trackio"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """What is known before the first step."""

    config: Any
    """A dataclass or a mapping."""
    mfu_convention: str | None = None
    """What train/mfu counts and which peak it divides by."""
    predicted: Mapping[str, LogValue] = field(default_factory=dict)
    """The plan's predictions, under the names of `names`."""
    fingerprints: Mapping[str, Any] = field(default_factory=dict)
    """Of the data, see `data.fingerprint`."""

    def as_json(self) -> dict[str, Any]:
        return {
            "config": as_json(self.config),
            "versions": versions(),
            "mfu_convention": self.mfu_convention,
            "predicted": as_json(self.predicted),
            "fingerprints": as_json(self.fingerprints),
        }


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
            return as_number(value)
        case None | bool() | int() | str():
            return value
        case Mapping():
            return {str(key): as_json(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [as_json(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {member.name: as_json(getattr(value, member.name)) for member in fields(value)}
    return str(value)


def as_number(value: float) -> float | str:
    if math.isfinite(value):
        return float(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def from_json(value: Any) -> Any:
    """A logged value; the strings for NaN and inf become floats."""
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value

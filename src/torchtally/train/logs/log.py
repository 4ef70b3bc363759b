"""The interface of a log, and the header of a run."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torchtally.checkpoints.plain import as_json, versions

LogValue = float | int | str

SCHEMA_VERSION = 1
"""Of log.jsonl. Readers refuse higher versions."""


@runtime_checkable
class Log(Protocol):
    """Receives the values of steps."""

    def write(self, step: int, values: Mapping[str, LogValue]) -> None:
        """Log the values of a step, named as in `names`. A step may occur more than once."""


class NoLog:
    """Discards everything: the log of all ranks but the first."""

    def write(self, step: int, values: Mapping[str, LogValue]) -> None: ...


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
        return {**as_json(self), "versions": versions()}

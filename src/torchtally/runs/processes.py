"""Runs of a sweep as children of this machine, and what an executor of runs is."""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torchtally.runs.children import Children
from torchtally.runs.protocol import ModuleRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run of a sweep."""

    name: str
    arguments: tuple[str, ...]
    """Of `tally`."""
    output: str
    """The file that its output is appended to."""
    folder: str
    """The one it runs in: paths of its config are relative to it."""


@dataclass(frozen=True, slots=True)
class Exit:
    """A run's process has ended."""

    name: str
    code: int
    """Negative: the signal that ended it."""
    wall_s: float
    problem: str = ""
    """Why it could not be started, or was lost."""


class Executor(Protocol):
    """Starts runs. On leaving its context, those that still go on are killed."""

    def __enter__(self) -> "Executor": ...

    def __exit__(self, *error: object) -> None: ...

    @property
    def has_room(self) -> bool:
        """Whether another run can be started."""

    def start(self, job: Job) -> None: ...

    def collect_ended(self) -> list[Exit]:
        """Runs that have ended since the last time; never waits."""

    def stop(self, name: str | None = None) -> None:
        """Ask all runs, or the one of this name, to save and end."""


class Processes:
    """An `Executor` of this machine: one run for each environment at a time."""

    def __init__(
        self,
        environments: Sequence[Mapping[str, str]],
        *,
        module: str = "torchtally",
        preload: Sequence[str] = (),
        is_warm: bool = True,
    ) -> None:
        """`module` is run as `python -m` does; `preload` is what it imports, for a warm start."""
        self._environments, self._module = environments, module
        self._free = list(range(len(environments)))[::-1]
        # Without grace: a run that was asked to save has had its time when we leave.
        self._children = Children("sweep", preload=preload, grace_s=0.0, is_warm=is_warm)

    def __enter__(self) -> "Processes":
        self._children.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._children.__exit__(*error)

    @property
    def has_room(self) -> bool:
        return bool(self._free)

    def start(self, job: Job) -> None:
        """Start a run in a free place. Raises OSError where it cannot be started."""
        place = self._free.pop()
        self._children.start(
            (job.name, place),
            ModuleRequest(module=self._module, arguments=job.arguments),
            environment={**os.environ, **self._environments[place]},
            cwd=job.folder,
            output=Path(job.output),
        )

    def collect_ended(self) -> list[Exit]:
        exits = []
        for child in self._children.collect_ended():
            name, place = child.key
            self._free.append(place)
            exits.append(Exit(name, child.code, child.wall_s))
        return exits

    def stop(self, name: str | None = None) -> None:
        self._children.signal(signal.SIGTERM, name)

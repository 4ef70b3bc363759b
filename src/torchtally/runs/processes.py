"""Runs as processes of this machine, several at a time, none of which outlives us.

Each has a session of its own, so that Ctrl-C reaches us alone, and a pipe to us: where we end
without a word, it is killed with all that it has started (`python -m torchtally.sweep`).
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run to be made."""

    name: str
    arguments: tuple[str, ...]
    """Of `tally`."""
    output: str
    """The file that all it says is added to."""
    folder: str
    """That it runs in: paths of its config are relative to it."""


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
    """What makes runs. On leaving its context, whatever still goes on is killed."""

    def __enter__(self) -> "Executor": ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    @property
    def has_room(self) -> bool:
        """Whether another run can be started."""

    def start(self, job: Job) -> None: ...

    def ended(self) -> list[Exit]:
        """Runs that have ended since the last time; never waits."""

    def stop(self) -> None:
        """Ask all runs to save and end."""


@dataclass(slots=True)
class _Running:
    name: str
    place: int
    process: "subprocess.Popen[bytes]"
    started_s: float


class Processes:
    """An `Executor` of this machine: one run for each environment at a time."""

    def __init__(self, environments: Sequence[Mapping[str, str]]) -> None:
        self._environments = environments
        self._free = list(range(len(environments)))[::-1]
        self._running: list[_Running] = []
        self._lifeline, self._our_end = os.pipe()

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for each in self._running:
            _signal_group(each.process.pid, signal.SIGKILL)
        for each in self._running:
            each.process.wait()
        os.close(self._our_end)
        os.close(self._lifeline)

    @property
    def has_room(self) -> bool:
        return bool(self._free)

    def start(self, job: Job) -> None:
        """Begin a run in a place that is free. What cannot be started raises OSError."""
        place = self._free.pop()
        with open(job.output, "ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "torchtally.sweep", str(self._lifeline), *job.arguments],
                env={**os.environ, **self._environments[place]},
                cwd=job.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[self._lifeline],
                start_new_session=True,
            )
        self._running.append(_Running(job.name, place, process, time.monotonic()))

    def ended(self) -> list[Exit]:
        exits = []
        for each in list(self._running):
            if each.process.poll() is not None:
                self._running.remove(each)
                self._free.append(each.place)
                _signal_group(each.process.pid, signal.SIGKILL)  # what it has left behind
                wall_s = time.monotonic() - each.started_s
                exits.append(Exit(each.name, each.process.returncode, wall_s))
        return exits

    def stop(self) -> None:
        # The training alone: what it has started serves it until it has saved.
        for each in self._running:
            each.process.send_signal(signal.SIGTERM)


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return

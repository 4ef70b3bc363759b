"""What appears in a folder: logs, and profilers' traces, each read once it is whole."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import fsum

from torchtally.errors import TraceFileError, UsageError
from torchtally.ledger import Ledger
from torchtally.live.observation import StepObservation
from torchtally.live.prediction import predicted_step
from torchtally.views.columns import part_of

TRACES = (".pt.trace.json", ".pt.trace.json.gz")
"""As `torch.profiler.tensorboard_trace_handler` names them."""
LOGS = (".log", ".out", "log.jsonl")
MOST_DEPTH = 4
MOST_FILES = 100_000
UNREADABLE_S = 60.0
"""A trace that cannot be read and has not changed for so long is damaged, not half written."""
WORKER = re.compile(r"(\.\d+)?\.pt\.trace\.json(\.gz)?$")

Explain = Callable[[str], Ledger]
"""A trace's account. Raises TraceFileError for one that is not whole."""


@dataclass(slots=True)
class TraceFile:
    """A trace as it was last seen."""

    state: tuple[int, int]
    """Time of the last change in nanoseconds, and size."""
    retry_s: float | None = None
    """Where it could not be read: when that means that it is damaged."""
    is_done: bool = False


class TraceFolder:
    """Each trace is explained once: when two looks find it unchanged, and it can be read."""

    def __init__(self, folder: str, explain: Explain) -> None:
        self.folder = folder
        self._explain = explain
        self._files: dict[str, TraceFile] = {}

    def traces(
        self, now_s: float, *, is_last: bool = False
    ) -> Iterator[tuple[str, StepObservation | TraceFileError]]:
        """Those that became whole, oldest first, or why they cannot be read. `is_last`: nobody will
        look again.
        """
        seen = {path: file for path in files(self.folder, TRACES) if (file := seen_file(path))}
        for path in sorted(seen, key=lambda path: (seen[path].state[0], path)):
            file = self._files.get(path)
            is_quiet = file is not None and file.state == seen[path].state
            if file is None or not is_quiet:
                file = self._files[path] = seen[path]
            if file.is_done or not (is_quiet or is_last):
                continue
            if file.retry_s is None or now_s >= file.retry_s:
                yield from self._read(path, file, now_s, is_last=is_last)

    def _read(
        self, path: str, file: TraceFile, now_s: float, *, is_last: bool
    ) -> Iterator[tuple[str, StepObservation | TraceFileError]]:
        try:
            observation = profiled_step(self._explain(path))
        except TraceFileError as error:
            file.is_done = is_last or file.retry_s is not None
            file.retry_s = now_s + UNREADABLE_S
            if file.is_done:
                yield path, error
            return
        file.is_done = True
        yield path, replace(observation, logged_at_s=file.state[0] * 1e-9)


def profiled_step(ledger: Ledger) -> StepObservation:
    """What a profiler measured: the reported step of a trace."""
    step, world = predicted_step(ledger, ""), ledger.trace.world
    idle_s = fsum(ledger.slot(entry).idle_s for entry in ledger.reported)
    return StepObservation(
        rank=world.rank if world.size > 1 else None,
        step_s=step.step_s,
        tokens_per_s=step.tokens_per_s,
        mfu=step.mfu,
        peak_bytes=step.peak_bytes,
        reserved_bytes=step.reserved_bytes,
        idle_share=part_of(idle_s, ledger.step_s) if ledger.step_s else None,
        is_profiled=True,
    )


def worker_of(path: str) -> str:
    """The process that writes such traces: "host_12" of host_12.1700000000.pt.trace.json.gz."""
    return WORKER.sub("", path)


def files(folder: str, endings: tuple[str, ...]) -> list[str]:
    """Those in the folder and below with such names, in order. Raises UsageError for a folder that
    cannot be read.
    """
    if not os.path.isdir(folder):
        raise UsageError(f"{folder}: no such folder.")
    paths: list[str] = []
    for place, folders, names in os.walk(folder):
        depth = os.path.relpath(place, folder).count(os.sep)
        folders[:] = sorted(folders) if depth < MOST_DEPTH else []
        paths += [os.path.join(place, name) for name in sorted(names) if name.endswith(endings)]
        if len(paths) > MOST_FILES:
            raise UsageError(f"{folder}: more than {MOST_FILES} logs and traces. Name one of them.")
    return paths


def seen_file(path: str) -> TraceFile | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return TraceFile((status.st_mtime_ns, status.st_size))

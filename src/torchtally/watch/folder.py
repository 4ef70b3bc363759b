"""What appears in a folder: profilers' traces, each read once it is whole, and logs."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import fsum

from torchtally.errors import TraceFileError, UsageError
from torchtally.ledger import Ledger
from torchtally.views.columns import part_of
from torchtally.views.summary import reserved_bytes_of
from torchtally.views.throughput import throughput
from torchtally.views.utilisation import model_utilisation
from torchtally.watch.observation import StepObservation

TRACES = (".pt.trace.json", ".pt.trace.json.gz")
"""As `torch.profiler.tensorboard_trace_handler` names them."""
LOGS = (".log", ".out", "log.jsonl")
MOST_DEPTH = 4
MOST_FILES = 100_000
UNREADABLE_S = 60.0
"""A trace that cannot be read and has not changed for so long is damaged, not half written."""
NUMBER = re.compile(r"\.\d+$")

Explain = Callable[[str], Ledger]
"""A trace's account. Raises TraceFileError for one that is not whole."""
State = tuple[int, int]
"""Size and time of the last change."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A trace that could not be read."""

    state: State
    since_s: float
    is_told: bool = False


@dataclass(frozen=True, slots=True)
class ReadTrace:
    """A trace and what it says, or why it cannot be read."""

    path: str
    observation: StepObservation | None
    error: str = ""


class TraceFolder:
    """Each trace is explained once: when two looks find it unchanged, and it can be read."""

    def __init__(self, folder: str, explain: Explain) -> None:
        self.folder = folder
        self._explain = explain
        self._seen: dict[str, State] = {}
        self._done: dict[str, State] = {}
        self._failed: dict[str, Attempt] = {}

    def traces(self, now_s: float, *, is_last: bool = False) -> Iterator[ReadTrace]:
        """Those that became whole, oldest first. `is_last`: nobody will look again."""
        states = {path: state for path in files(self.folder, TRACES) if (state := state_of(path))}
        for path in sorted(states, key=lambda path: (states[path][1], path)):
            state = states[path]
            if self._done.get(path) == state:
                continue
            is_quiet = is_last or self._seen.get(path) == state
            self._seen[path] = state
            if is_quiet:
                yield from self._read(path, state, now_s, is_last=is_last)

    def _read(self, path: str, state: State, now_s: float, *, is_last: bool) -> Iterator[ReadTrace]:
        failed = self._failed.get(path)
        if failed is not None and failed.state == state:
            if failed.is_told or now_s - failed.since_s < UNREADABLE_S:
                return
            is_last = True
        try:
            observation = profiled_step(self._explain(path))
        except TraceFileError as error:
            if is_last:
                yield ReadTrace(path, None, str(error))
            since_s = failed.since_s if failed is not None and failed.state == state else now_s
            self._failed[path] = Attempt(state, since_s, is_told=is_last)
            return
        self._failed.pop(path, None)
        self._done[path] = state
        yield ReadTrace(path, replace(observation, logged_at_s=state[1] * 1e-9))


def profiled_step(ledger: Ledger) -> StepObservation:
    """What a profiler measured: the reported step of a trace."""
    speed, utilisation = throughput(ledger), model_utilisation(ledger)
    steps = ledger.reported_period.steps
    idle_s = fsum(ledger.slot(entry).idle_s for entry in ledger.reported)
    world = ledger.trace.world
    return StepObservation(
        rank=world.rank if world.size > 1 else None,
        step_s=ledger.step_s / steps if ledger.step_s and steps else None,
        tokens_per_s=None if speed is None else speed.tokens_per_s,
        mfu=None if utilisation is None else utilisation.fraction,
        peak_bytes=ledger.memory.peak_bytes if ledger.knows_memory else None,
        reserved_bytes=reserved_bytes_of(ledger) if ledger.knows_memory else None,
        idle_share=part_of(idle_s, ledger.step_s) if ledger.step_s else None,
        is_profiled=True,
    )


def worker_of(path: str) -> str:
    """The process that writes such traces: "host_12" of host_12.1700000000.pt.trace.json.gz."""
    name = os.path.basename(path)
    for ending in sorted(TRACES, key=len, reverse=True):
        name = name.removesuffix(ending)
    return os.path.join(os.path.dirname(path), NUMBER.sub("", name))


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


def state_of(path: str) -> State | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns

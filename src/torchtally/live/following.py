"""The loop over logs and traces. Time is the caller's: a clock, and a function that waits."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torchtally.errors import TraceFileError, UsageError
from torchtally.live.folder import LOGS, Explain, TraceFolder, files, worker_of
from torchtally.live.formats import KNOWN
from torchtally.live.logs import LogLines
from torchtally.live.tail import FollowedFile
from torchtally.live.watcher import Watcher, WatchEvent

INTERVAL_S = 0.5
"""Between two looks at a log, and at a folder."""
NO_STEPS = f"no step in it. Logs of these are known: {', '.join(KNOWN)}."


@dataclass(frozen=True, slots=True)
class Waiting:
    """The caller's time."""

    clock: Callable[[], float]
    wait: Callable[[float], None]
    interval_s: float = INTERVAL_S


class LogSource:
    """A log that is followed. `is_named`: by itself; a folder has logs of other things, too."""

    def __init__(self, path: str, *, is_named: bool) -> None:
        self.path = path
        self._file, self._lines = FollowedFile(path), LogLines(path)
        self._is_backlog = True
        self._is_told_blind = not is_named

    def look(self, watcher: Watcher, now_s: float, *, is_last: bool) -> Iterator[WatchEvent]:
        """What its new lines say."""
        yield from self._of_lines(self._file.lines(), watcher, now_s)
        if is_last:
            yield from self._of_lines(self._file.last_line(), watcher, now_s)
            for observation in self._lines.rest():
                yield from watcher.see(self.path, observation, now_s, is_backlog=True)
        for note in self._file.notes:
            yield watcher.note(self.path, note)
        self._file.notes.clear()
        if self._lines.is_blind and not self._is_told_blind:
            self._is_told_blind = True
            text = f"{self.path}: {self._lines.lines} lines, {NO_STEPS}"
            yield watcher.note(self.path, text)
        self._is_backlog = self._is_backlog and not self._file.is_open

    def _of_lines(
        self, lines: Iterator[str], watcher: Watcher, now_s: float
    ) -> Iterator[WatchEvent]:
        for line in lines:
            for observation in self._lines.observations(line):
                watcher.expect(self.path, self._lines.predicted)
                yield from watcher.see(self.path, observation, now_s, is_backlog=self._is_backlog)


class Sources:
    """A log, or the traces and logs of a folder, those that appear later too."""

    def __init__(self, path: str, explain: Explain) -> None:
        self.path = path
        self._explain = explain
        self._logs: dict[str, LogSource] = {}
        self._traces: TraceFolder | None = None

    def look(
        self, watcher: Watcher, now_s: float, *, is_last: bool = False
    ) -> Iterator[WatchEvent]:
        """What is new in it."""
        if self._traces is None and os.path.isdir(self.path):  # perhaps only now
            self._traces, self._logs = TraceFolder(self.path, self._explain), {}
        is_named = self._traces is None
        for path in [self.path] if is_named else files(self.path, LOGS):
            if path not in self._logs:
                self._logs[path] = LogSource(path, is_named=is_named)
        for log in self._logs.values():
            yield from log.look(watcher, now_s, is_last=is_last)
        if self._traces is None:
            return
        for path, seen in self._traces.traces(now_s, is_last=is_last):
            if isinstance(seen, TraceFileError):
                yield watcher.note(path, str(seen))
            else:
                yield from watcher.see(worker_of(path), seen, now_s, file=path, is_backlog=True)


def follow(
    path: str, watcher: Watcher, explain: Explain, pace: Waiting, *, is_once: bool = False
) -> Iterator[WatchEvent]:
    """What happens, for ever, or `is_once` what has happened.

    Raises UsageError for a log that is not there or has no step where nothing is waited for, and
    for what cannot be read.
    """
    sources = Sources(path, explain)
    if is_once:
        if not os.path.exists(path):
            raise UsageError(f"{path}: no such log or folder.")
        yield from sources.look(watcher, pace.clock(), is_last=True)
        if not watcher.records:
            raise UsageError(f"{path}: {NO_STEPS}")
        return
    while True:
        now_s = pace.clock()
        yield from sources.look(watcher, now_s)
        yield from watcher.missing(now_s)
        pace.wait(pace.interval_s)

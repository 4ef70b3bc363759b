"""The loop over logs and traces. Time is the caller's: a clock, and a function that waits."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torchtally.errors import UsageError
from torchtally.watch.folder import LOGS, Explain, TraceFolder, files, worker_of
from torchtally.watch.formats import KNOWN
from torchtally.watch.logs import LogLines
from torchtally.watch.tail import FollowedFile
from torchtally.watch.watcher import Watcher, WatchEvent

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
    """A log that is followed."""

    def __init__(self, path: str, *, is_asked_for: bool = True) -> None:
        self.path = path
        self._file, self._lines = FollowedFile(path), LogLines(path)
        self._is_backlog = True
        # Of a folder's logs some may be of something else.
        self._is_told_blind = not is_asked_for

    def look(self, watcher: Watcher, now_s: float, *, is_last: bool) -> Iterator[WatchEvent]:
        """What its new lines say."""
        for line in self._file.lines():
            yield from self._of_line(line, watcher, now_s)
        if is_last:
            for line in self._file.last_line():
                yield from self._of_line(line, watcher, now_s)
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

    def _of_line(self, line: str, watcher: Watcher, now_s: float) -> Iterator[WatchEvent]:
        for observation in self._lines.observations(line):
            if self._lines.expectation is not None:
                watcher.expect(self.path, self._lines.expectation)
            yield from watcher.see(self.path, observation, now_s, is_backlog=self._is_backlog)


class FolderSource:
    """Traces and logs of a folder, those that appear later too."""

    def __init__(self, folder: str, explain: Explain) -> None:
        self.path = folder
        self._traces = TraceFolder(folder, explain)
        self._logs: dict[str, LogSource] = {}

    def look(self, watcher: Watcher, now_s: float, *, is_last: bool) -> Iterator[WatchEvent]:
        """What is new in it."""
        for path in files(self.path, LOGS):
            if path not in self._logs:
                self._logs[path] = LogSource(path, is_asked_for=False)
        for log in self._logs.values():
            yield from log.look(watcher, now_s, is_last=is_last)
        for trace in self._traces.traces(now_s, is_last=is_last):
            if trace.observation is None:
                yield watcher.note(trace.path, trace.error)
            else:
                yield from watcher.see(
                    worker_of(trace.path), trace.observation, now_s, file=trace.path,
                    is_backlog=True,
                )  # fmt: skip


def source_of(path: str, explain: Explain) -> LogSource | FolderSource:
    return FolderSource(path, explain) if os.path.isdir(path) else LogSource(path)


def follow(
    path: str, watcher: Watcher, explain: Explain, pace: Waiting, *, is_once: bool = False
) -> Iterator[WatchEvent]:
    """What happens, for ever, or `is_once` what has happened.

    Raises UsageError for a log that is not there or has no step where nothing is waited for, and
    for what cannot be read.
    """
    source = source_of(path, explain)
    if is_once:
        if not os.path.exists(path):
            raise UsageError(f"{path}: no such log or folder.")
        yield from source.look(watcher, pace.clock(), is_last=True)
        if not watcher.records:
            raise UsageError(f"{path}: {NO_STEPS}")
        return
    while True:
        now_s = pace.clock()
        if isinstance(source, LogSource) and os.path.isdir(path):
            source = FolderSource(path, explain)  # it did not exist when it was first looked for
        yield from source.look(watcher, now_s, is_last=False)
        yield from watcher.missing(now_s)
        pace.wait(pace.interval_s)

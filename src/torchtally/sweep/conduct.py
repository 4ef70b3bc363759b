"""The sweep itself: what waits is started, what ends is noted, and a signal stops it."""

import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from torchtally.runs.processes import Executor, Exit, Job

TRAIN_MODULES = ("torchtally.cli.train", "torchtally.train.job")
"""What `tally train` imports, for its warm start in runs of a sweep."""
POLL_S = 0.1
SAVING_S = 300.0
"""For runs that were asked to save and end; then they are killed."""
WATCHED = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class StopSignals:
    """A context in which the signals that end a program are counted, and end nothing.

    One that is ignored stays so: `nohup tally sweep` outlives its terminal.
    """

    def __init__(self) -> None:
        self.number = 0
        """Of the first; 0 for none."""
        self.count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        for number in WATCHED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        self.count += 1


def conduct(
    jobs: Iterable[Job],
    executor: Executor,
    signals: StopSignals,
    *,
    started: Callable[[Job], None],
    ended: Callable[[Exit], None],
    stopping: Callable[[int], None],
    passing: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Run all jobs, or until a signal: then start no more and ask the running ones to save.

    A second signal, or the end of `SAVING_S`, leaves at once; the executor kills what goes on.
    `stopping` gets the number of runs waited for; `passing` is called between polls.
    """
    waiting = deque(jobs)
    going: set[str] = set()
    deadline_s: float | None = None
    while waiting or going:
        for each in executor.collect_ended():
            going.discard(each.name)
            ended(each)
        if signals.number and deadline_s is None:
            deadline_s = clock() + SAVING_S
            waiting.clear()
            executor.stop()
            stopping(len(going))
        if signals.count > 1 or (deadline_s is not None and clock() >= deadline_s):
            return
        while waiting and executor.has_room:
            job = waiting.popleft()
            started(job)
            executor.start(job)
            going.add(job.name)
        passing()
        if going:
            sleep(POLL_S)

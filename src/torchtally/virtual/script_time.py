"""CPU time of the script's own code: from where tally's code ends to where it begins again.

Operators, files, clocks, hooks and collections of garbage are told by `stop` and `go`; what lies
between is the script's, and the libraries' that it calls. Pieces shorter than `RESOLUTION_S` are
left out: what surrounds an operator is in the time that issuing one takes.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

RESOLUTION_S = 50e-6
LEAST_S = 5e-3
"""Before one operator. What Python and torch do around optimizers and many parameters is less."""


class ScriptTime:
    """The time of the thread that runs operators: others of the script are beside it."""

    __slots__ = (
        "_cpu", "_cpu_s", "_depth", "_read_at", "_since", "_thread", "_wall_s", "_worked_s"
    )  # fmt: skip

    def __init__(
        self,
        wall_s: Callable[[], float] = time.perf_counter,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._wall_s, self._cpu_s = wall_s, cpu_s
        self._depth = 0
        """How many of tally's functions the thread is inside of."""
        self._worked_s = 0.0
        self._begin(get_ident())

    def _begin(self, thread: int) -> None:
        self._thread = thread
        self._since = self._read_at = self._wall_s()
        self._cpu = self._cpu_s()
        """As of `_read_at`: reading it takes ten times as long as the other clock."""

    def restart(self) -> None:
        """Begin a run: what the process did before is not the script's."""
        self._depth, self._worked_s = 0, 0.0
        self._begin(get_ident())

    def stop(self) -> None:
        """A function of tally's begins."""
        thread = get_ident()
        if self._depth:
            self._depth += thread == self._thread
            return
        if thread != self._thread:
            self._begin(thread)
        self._depth = 1
        now = self._wall_s()
        if now - self._since > RESOLUTION_S:
            cpu = self._cpu_s()
            # Of the processor's time, a part may have passed before the script went on.
            self._worked_s += min(now - self._since, cpu - self._cpu)
            self._cpu, self._read_at = cpu, now

    def go(self) -> None:
        """The function ends."""
        if get_ident() != self._thread or not self._depth:
            return
        if self._depth == 1:
            self._since = now = self._wall_s()
            if now - self._read_at > RESOLUTION_S:
                self._cpu, self._read_at = self._cpu_s(), now
        self._depth -= 1

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.stop()
        try:
            yield
        finally:
            self.go()

    def run(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function for the script, from the outermost function of tally's."""
        if self._depth != 1:
            return function(*args, **kwargs)
        self.go()
        try:
            return function(*args, **kwargs)
        finally:
            self.stop()

    def take(self) -> float:
        """Seconds since the last time; 0 where they are too few to tell from tally's own."""
        worked_s, self._worked_s = self._worked_s, 0.0
        return worked_s if worked_s >= LEAST_S else 0.0

    def collection(self, phase: str, info: dict[str, int]) -> None:
        """One of `gc.callbacks`: most of what Python looks through is tally's."""
        if phase == "start":
            self.stop()
        else:
            self.go()


SCRIPT_TIME = ScriptTime()


@contextmanager
def without_garbage() -> Iterator[None]:
    """A context in which the script's time is without collections."""
    SCRIPT_TIME.restart()
    gc.callbacks.append(SCRIPT_TIME.collection)
    try:
        yield
    finally:
        gc.callbacks.remove(SCRIPT_TIME.collection)

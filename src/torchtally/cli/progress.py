"""What `tally run` says on stderr while the script runs: one line that moves, or a line a step."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TextIO

from torchtally.units import format_bytes, format_seconds

INTERVAL_S = 0.2
CLEAR_LINE = "\r\x1b[K"


class Progress:
    """Counts as they are now, printed as a moving line on a terminal and per step elsewhere.

    The script shares the terminal. What it prints there takes the line's place first, and no line
    is drawn behind text that has not ended: a prompt, or a progress bar of the script's own.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, is_quiet: bool = False
    ) -> None:
        self.steps_wanted: int | None = None
        self.steps = 0
        self.operators: Callable[[], int] = int
        self.peak_bytes: Callable[[], int] = int
        self._clock = clock
        self._started_s = clock()
        self._is_quiet = is_quiet
        self._stream = sys.stderr
        self._write = sys.stderr.write
        self._moves = sys.stderr.isatty() and not is_quiet
        self._process = os.getpid()
        self._over = threading.Event()
        self._lock = threading.RLock()
        self._is_drawn = False
        self._is_line_over = True
        """Whether what the script printed last ended its line."""

    def step_completed(self, number: int) -> None:
        """Say so, unless a line moves already. Nobody listening is no error of the script's."""
        self.steps = number
        if not self._moves and not self._is_quiet:
            self._put(f"tally: {self.line()}\n")

    def line(self) -> str:
        """What there is so far: step 1/2, 3512 operators, peak 3.20 GiB, 4.10 s."""
        wanted = f"/{self.steps_wanted}" if self.steps_wanted is not None else ""
        elapsed = format_seconds(self._clock() - self._started_s)
        return (
            f"step {self.steps}{wanted}, {self.operators()} operators, "
            f"peak {format_bytes(self.peak_bytes())}, {elapsed}"
        )

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Redraw the line on a terminal until `stop`, or until the block is left."""
        with ExitStack() as stack:
            if self._moves:
                for stream in (sys.stdout, sys.stderr):
                    stack.enter_context(self._giving_way(stream))
                # Started before the simulation: the script's own threads get its GPU, not this one.
                threading.Thread(target=self._draw, name="tally-progress", daemon=True).start()
            stack.callback(self.stop)
            yield

    def stop(self) -> None:
        """Take the line away. Nothing is drawn afterwards."""
        with self._lock:
            self._over.set()
            self._erase()

    @contextmanager
    def _giving_way(self, stream: TextIO) -> Iterator[None]:
        """What is written to a terminal's stream takes the place of the line."""
        if not stream.isatty():
            yield
            return
        native = stream.write

        def write(text: str) -> int:
            if os.getpid() != self._process:
                return native(text)
            with self._lock:
                self._erase()
                self._is_line_over = text.endswith("\n") if text else self._is_line_over
                return native(text)

        stream.write = write  # type: ignore[method-assign]
        try:
            yield
        finally:
            del stream.write

    def _draw(self) -> None:
        while not self._over.wait(INTERVAL_S):
            with self._lock:
                if self._is_line_over and not self._over.is_set():
                    self._is_drawn = True
                    self._put(f"{CLEAR_LINE}tally: {self.line()}")

    def _erase(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            self._put(CLEAR_LINE)

    def _put(self, text: str) -> None:
        try:
            self._write(text)
            self._stream.flush()
        except (OSError, ValueError):  # nobody reads it, or the script has closed it
            return

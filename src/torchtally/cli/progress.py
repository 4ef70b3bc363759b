"""What `tally run` says on stderr while the script runs: one line that moves, or a line a step."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torchtally.units import format_bytes, format_seconds

INTERVAL_S = 0.2
CLEAR_LINE = "\r\x1b[K"


class Progress:
    """Counts as they are now, printed as a moving line on a terminal and per step elsewhere."""

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
        self._moves = sys.stderr.isatty() and not is_quiet
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def step_completed(self, number: int) -> None:
        self.steps = number
        if not self._moves and not self._is_quiet:
            print(f"tally: {self.line()}", file=sys.stderr, flush=True)

    def line(self) -> str:
        """ "step 1/2, 3512 operators, peak 3.20 GiB, 4.10 s" """
        wanted = f"/{self.steps_wanted}" if self.steps_wanted is not None else ""
        elapsed = format_seconds(self._clock() - self._started_s)
        return (
            f"step {self.steps}{wanted}, {self.operators()} operators, "
            f"peak {format_bytes(self.peak_bytes())}, {elapsed}"
        )

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Redraw the line on a terminal until `stop`, or until the block is left."""
        if self._moves:
            # Started before the simulation: the script's own threads get its GPU, this one not.
            self._thread = threading.Thread(target=self._draw, name="tally-progress", daemon=True)
            self._thread.start()
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        """Take the line away. Nothing is drawn afterwards."""
        if self._thread is None:
            return
        self._done.set()
        self._thread.join()
        self._thread = None
        sys.stderr.write(CLEAR_LINE)
        sys.stderr.flush()

    def _draw(self) -> None:
        while not self._done.wait(INTERVAL_S):
            sys.stderr.write(f"{CLEAR_LINE}tally: {self.line()}")
            sys.stderr.flush()

"""The progress display of every command: one refreshed line on a terminal, sparse lines elsewhere.

    tally: trying batch 64, 12.1 s, 30.0 s left

A closed pipe does not end the work that is shown.
"""

import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torchtally.units import format_seconds

CLEAR_LINE = "\r\x1b[K"
CLEAR_BELOW = "\x1b[J"
TABS, COLOURS = re.compile(r"(\t)"), re.compile(r"(\t|\x1b\[[0-9;]*m)")
"""What stays of lines that are printed."""
INTERVAL_S = 0.2
"""Between two drawings on a terminal."""
SPARSE_S = 10.0
"""Between two lines elsewhere."""
WIDTH = 80


@runtime_checkable
class TextStream(Protocol):
    """What progress is written to: stderr, mostly."""

    @property
    def encoding(self) -> str | None: ...
    def isatty(self) -> bool: ...
    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One training step, as it is shown and logged. None is unknown, and is left out."""

    loss: float
    learning_rate: float | None = None
    tokens: int | None = None
    """Trained on so far."""
    tokens_per_s: float | None = None
    step_s: float | None = None
    """Of this step alone."""
    wait_s: float = 0.0
    skipped_steps: int = 0
    grad_norm: float | None = None
    epoch: float | None = None
    mfu: float | None = None
    """A fraction; logged in percent, as is usual."""
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    """Measured, by category."""
    peak_bytes: int | None = None
    """Device memory at the peak; shown only."""


class StatusLine:
    """A line that is redrawn on a terminal; elsewhere lines that stay, few of them."""

    def __init__(
        self,
        stream: TextStream | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        is_quiet: bool = False,
        sparse_s: float | None = None,
        width: int = WIDTH,
    ) -> None:
        self._stream: TextStream = sys.stderr if stream is None else stream
        # A bound method: a script that shares the terminal may have its stream's `write` wrapped.
        self._write = self._stream.write
        self._clock, self.is_quiet = clock, is_quiet
        self.is_redrawn = not is_quiet and is_terminal(self._stream)
        sparse_s = SPARSE_S if sparse_s is None else sparse_s
        self._interval_s = INTERVAL_S if self.is_redrawn else sparse_s
        # The last column of a terminal stays free: some go on to the next line there.
        self._width = width - 1 if self.is_redrawn else width
        self._started_s = clock()
        self._shown_s = -math.inf if self.is_redrawn else self._started_s
        self._drawn = 0
        """Lines that stand on the terminal and are drawn over by the next."""
        self._is_below = False
        """Whether they stand below the cursor."""
        self._lock = threading.RLock()

    @property
    def width(self) -> int:
        return self._width

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started_s

    def is_due(self) -> bool:
        """Whether enough time has passed since the last line."""
        return not self.is_quiet and self._clock() - self._shown_s >= self._interval_s

    def show(self, text: str, *, share: float | None = None, at_once: bool = False) -> None:
        """Shows the progress of the work, with the time elapsed; with `share` done of it, the time
        remaining.

        Shown where it is due, or `at_once`.
        """
        if at_once or self.is_due():
            times = format_seconds(self.elapsed_s)
            if share:
                times += f", {format_seconds(self.elapsed_s * (1 - share) / share)} left"
            self.draw(f"tally: {text}, {times}")

    def draw(self, line: str) -> None:
        """The line as it is, now: in the place of the last one on a terminal."""
        if self.is_quiet:
            return
        line = printable(line)
        if self.is_redrawn:
            self.draw_lines([line[: self._width]])
        else:
            self._shown_s = self._clock()
            with self._lock:
                self._put(f"{line}\n")

    def draw_lines(self, lines: Sequence[str], *, below: int | None = None) -> None:
        """Several lines of a terminal, in the place of what was drawn last.

        They are put out as they are: free of strangers' control characters, and no wider than it.
        `below` a line that has not ended, the cursor goes back to its end: so many columns.
        """
        if self.is_quiet or not self.is_redrawn:
            return
        self._shown_s = self._clock()
        with self._lock:
            if below is not None:
                drawn = "".join(f"\n{CLEAR_LINE}{line}" for line in lines)
                rightwards = f"\x1b[{below}C" if below else ""
                self._put(f"{CLEAR_BELOW}{drawn}\x1b[{len(lines)}A\r{rightwards}")
                self._drawn, self._is_below = len(lines), True
                return
            rest = CLEAR_BELOW if self._drawn > len(lines) else ""
            self._put(self._upwards() + "\n".join(f"{CLEAR_LINE}{line}" for line in lines) + rest)
            self._drawn = len(lines)

    def _upwards(self) -> str:
        """Escape sequence to the first of the lines that are drawn."""
        return f"\x1b[{self._drawn - 1}A" if self._drawn > 1 else ""

    def say(self, text: str) -> None:
        """Lines that stay, above the one that is redrawn."""
        if self.is_quiet:
            return
        with self._lock:
            self.erase()
            for line in text.splitlines():
                self._put(f"{printable(line)}\n")
        self._shown_s = -math.inf if self.is_redrawn else self._clock()

    def erase(self) -> None:
        """Take the line away."""
        with self._lock:
            if self._is_below:
                self._put(CLEAR_BELOW)
            elif self._drawn:
                below = CLEAR_BELOW if self._drawn > 1 else ""
                self._put(f"{self._upwards()}{CLEAR_LINE}{below}")
            self._drawn, self._is_below = 0, False

    def keep(self) -> None:
        """The line stays where it is, and what comes next begins below it."""
        with self._lock:
            if self._drawn:
                self._put("\n")
            self._drawn = 0

    def __enter__(self) -> "StatusLine":
        return self

    def __exit__(self, *error: object) -> None:
        self.erase()

    def _put(self, text: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        try:
            self._write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):
            return


def is_terminal(stream: TextStream) -> bool:
    """Whether a line can be redrawn there."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def printable(text: str) -> str:
    """The text without control, escape and direction characters; line breaks become spaces."""
    kept = (char if char.isprintable() else " " if char.isspace() else "" for char in text)
    return "".join(kept)


def printable_lines(text: str, *, is_coloured: bool = False) -> str:
    """The same line by line; tabs stay, and colours where they are those of a report.

    Whatever commands print passes here or `printable`, since names, notes and source lines are of
    files by strangers, and a terminal obeys control characters.
    """
    kept = COLOURS if is_coloured else TABS
    return "\n".join(
        line
        if line.isprintable()
        else "".join(part if kept.fullmatch(part) else printable(part) for part in kept.split(line))
        for line in text.split("\n")
    )

"""The progress of a simulated run: one line that moves, or a line a step."""

import builtins
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import copy_context
from functools import partial
from typing import TextIO

from rich.cells import cell_len

from torchtally.progress import INTERVAL_S, StatusLine, TextStream
from torchtally.report.run_display import RunDisplay
from torchtally.units import format_bytes, format_seconds

MOST_TAIL = 10_000
"""Characters of a line that has not ended; a terminal's is much shorter."""
HARMLESS = re.compile(r"\x1b\[[0-9;]*[mK]")
"""Colours, and clearing the rest of a line: the cursor stays."""


class RunProgress:
    """Counts as they are now, on stderr: a line that moves on a terminal, else one for each step.

    Where ten seconds pass without a step, a line says how far it is.

    The script shares the terminal. What it prints there takes the line's place first, and no line
    is drawn behind text that has not ended: a prompt, or a progress bar of the script's own. A
    display of several lines stands below such text, and the cursor behind it.
    """

    def __init__(
        self,
        *,
        steps: int | None = None,
        is_quiet: bool = False,
        stream: TextStream | None = None,
        display: RunDisplay | None = None,
    ) -> None:
        """`stream`: where it is drawn; None for stderr. `display` is drawn on a terminal, in place
        of the line.
        """
        self.display = display
        self.steps_expected = steps
        self.steps = 0
        self.building: Callable[[], str] = str
        self.tokens: Callable[[], int] = int
        self.operators: Callable[[], int] = int
        self.host_operators: Callable[[], int] = int
        self.host_bytes: Callable[[], int] = int
        self.peak_bytes: Callable[[], int] = int
        self._status = StatusLine(stream, is_quiet=is_quiet)
        self._process = os.getpid()
        self._over = threading.Event()
        # In our context: a notebook's kernel finds the cell that an output is of by it.
        draw = partial(copy_context().run, self._draw)
        self._thread = threading.Thread(target=draw, name="tally-progress", daemon=True)
        self._lock = threading.RLock()
        self._tail = ""
        """What the script printed since the last end of a line."""
        self._is_asking = False
        """Whether it waits for an answer."""

    def complete_step(self, number: int) -> None:
        """Print the step, unless a line moves already."""
        self.steps = number
        if not self._status.is_redrawn:
            self._status.draw(f"tally: {self.line()}")

    def line(self) -> str:
        """What there is so far: step 1/2, 3512 operators, peak 3.20 GiB, 4.10 s.

        Before the first step a model is built, on the host as a rule: what there is of it. A
        compiler of C++ takes minutes, in which nothing else happens.
        """
        if extension := self.building():
            seconds = format_seconds(self._status.elapsed_s)
            return f"compiling the script's C++ extension {extension[:40]}, {seconds}"
        if not self.steps and (tokens := self.tokens()):
            return (
                f"decoding pass {tokens}, {self.operators()} operators, "
                f"peak {format_bytes(self.peak_bytes())}, {format_seconds(self._status.elapsed_s)}"
            )
        expected = f"/{self.steps_expected}" if self.steps_expected is not None else ""
        if not self.steps:
            held_bytes = self.host_bytes() + self.peak_bytes()
            return (
                f"before step 1{expected}, {self.host_operators() + self.operators()} operators, "
                f"{format_bytes(held_bytes)}, {format_seconds(self._status.elapsed_s)}"
            )
        return (
            f"step {self.steps}{expected}, {self.operators()} operators, "
            f"peak {format_bytes(self.peak_bytes())}, {format_seconds(self._status.elapsed_s)}"
        )

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Draw the line until `stop`, or until the block is left."""
        with ExitStack() as stack:
            if self._status.is_redrawn:
                for stream in (sys.stdout, sys.stderr):
                    stack.enter_context(self._giving_way(stream))
                stack.enter_context(self._giving_way_to_questions())
            stack.callback(self.stop)
            if not self._status.is_quiet:
                # Started before the simulation: the script's own threads get its GPU, not this one.
                self._thread.start()
            yield

    def stop(self) -> None:
        """Take the line away. Nothing is drawn afterwards."""
        with self._lock:
            self._over.set()
            self._status.erase()
        if self._thread.is_alive():
            self._thread.join(timeout=10 * INTERVAL_S)  # no thread of the script's is left running

    @contextmanager
    def _giving_way(self, stream: TextIO) -> Iterator[None]:
        """What is written to a terminal's stream takes the place of the line."""
        if not stream.isatty():
            yield
            return
        native = stream.write

        def write(text: str) -> int:
            # A forked child of the script inherits the wrapped stream, but not the drawing thread.
            if os.getpid() != self._process:
                return native(text)
            with self._lock:
                self._status.erase()
                count = native(text)
                self._tail = (self._tail + text).rpartition("\n")[2][-MOST_TAIL:]
                if self._tail and self.display is not None:
                    stream.flush()  # the cursor is where the display takes it to be
                return count

        stream.write = write  # type: ignore[method-assign]
        try:
            yield
        finally:
            del stream.write

    @contextmanager
    def _giving_way_to_questions(self) -> Iterator[None]:
        """Nothing is drawn while the script's `input` waits: on a terminal it writes its prompt in
        C, past `sys.stdout.write` (CPython's `builtin_input_impl`).
        """
        native = builtins.input

        def ask(prompt: object = "", /) -> str:
            if os.getpid() != self._process:
                return native(prompt)
            with self._lock:
                self._status.erase()
                self._is_asking = True
            try:
                return native(prompt)
            finally:
                self._is_asking, self._tail = False, ""

        builtins.input = ask
        try:
            yield
        finally:
            builtins.input = native

    def _draw(self) -> None:
        while not self._over.wait(INTERVAL_S):
            with self._lock:
                is_due = self._status.is_redrawn or self._status.is_due()
                if is_due and not self._is_asking and not self._over.is_set():
                    self._show()

    def _show(self) -> None:
        headline, column = f"tally: {self.line()}", column_after(self._tail)
        if self.display is None or not self._status.is_redrawn:
            if not self._tail:
                self._status.draw(headline)
        elif not self._tail:
            self._status.draw_lines(self.display.lines(headline))
        elif column is not None:
            self._status.draw_lines(self.display.lines(headline), below=column)


def column_after(tail: str) -> int | None:
    """The terminal's column behind text that has not ended its line; None where that is unknown:
    the text is too wide, or moves the cursor by more than a carriage return.
    """
    visible = HARMLESS.sub("", tail).rpartition("\r")[2]
    width = cell_len(visible)
    is_known = visible.isprintable() and width < shutil.get_terminal_size().columns
    return width if is_known else None

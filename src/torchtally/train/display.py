"""What a training says while it runs: one moving line on a terminal, a line now and then elsewhere.

Before the first step a table of what was predicted; after the first measured one the same table,
with what was measured beside it. Everything is text of at most 80 columns; only a terminal is sent
control characters. Seconds come from a clock that is passed in.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torchtally.units import (
    FORMATS,
    Unit,
    format_bytes,
    format_count,
    format_fraction,
    format_seconds,
)

WIDTH = 80
CLEAR_LINE = "\r\x1b[K"
INTERVAL_S = 0.1
"""Between two drawings of the moving line."""
WARMING_STEPS = 3
"""Steps that no rate is taken from: they compile, make optimizer state and try out kernels."""
SMOOTHING = 0.1
"""Weight of the newest step in the mean: steps longer than ten ago hardly count."""
GAP = "  "
INDENT = "  "
WAITING = 0.005
"""Of a step: a wait below it is not worth the room."""

Clock = Callable[[], float]


@runtime_checkable
class Stream(Protocol):
    """What is shown on: stderr, mostly."""

    @property
    def encoding(self) -> str | None: ...
    def isatty(self) -> bool: ...
    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...


class Rate:
    """Seconds per step: smoothed, without the first steps, and without what is not a step.

    Evaluations, samples and checkpoints run in `paused()`.
    """

    def __init__(
        self, *, clock: Clock = time.perf_counter, warming_steps: int = WARMING_STEPS
    ) -> None:
        self.step_s: float | None = None
        """Smoothed; None until the first steps are over."""
        self._clock = clock
        self._to_ignore = warming_steps
        self._since_s = clock()
        self._weight = 0.0
        self._sum_s = 0.0

    def lap(self) -> float:
        """A step is over. What it took since the one before, without pauses."""
        now_s = self._clock()
        taken_s, self._since_s = now_s - self._since_s, now_s
        if self._to_ignore > 0:
            self._to_ignore -= 1
        else:
            # Divided by the weight so far, the mean is of all steps there are, from the first on.
            self._sum_s += SMOOTHING * (taken_s - self._sum_s)
            self._weight += SMOOTHING * (1 - self._weight)
            self.step_s = self._sum_s / self._weight
        return taken_s

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What runs in the block is no part of any step."""
        paused_s = self._clock()
        try:
            yield
        finally:
            self._since_s += self._clock() - paused_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Where a training is. None is what nobody knows, and is not shown."""

    step: int
    """Steps done."""
    loss: float
    step_s: float | None = None
    """Of this step alone; for what is shown of the wait."""
    tokens_per_s: float | None = None
    mfu: float | None = None
    wait_s: float = 0.0
    measured_bytes: int | None = None
    """Device memory at the peak."""
    predicted_bytes: int | None = None


class Progress:
    """Shows moments. On a terminal in one line that moves, elsewhere each `every` steps.

    Nobody listening any more, a pipe that was closed, is no error of the training's.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        steps: int,
        rate: Rate,
        every: int,
        clock: Clock = time.perf_counter,
        width: int = WIDTH,
    ) -> None:
        self.moves = is_terminal(stream)
        self._stream, self._clock = stream, clock
        self._steps, self._rate, self._every = steps, rate, every
        # The last column of a terminal stays free: some go on to the next line there.
        self._width = width - 1 if self.moves else width
        self._drawn_s = -math.inf
        self._is_drawn = False
        self._has_shown = False

    def show(self, moment: Moment) -> None:
        """The moment, where it is due: the first, the last, each so many; or some time after."""
        is_last = moment.step >= self._steps
        if self.moves:
            now_s = self._clock()
            if is_last or now_s - self._drawn_s >= INTERVAL_S:
                self._drawn_s, self._is_drawn = now_s, True
                self._put(CLEAR_LINE + self._line(moment))
        elif is_last or not self._has_shown or moment.step % self._every == 0:
            self._put(f"{self._line(moment)}\n")
        self._has_shown = True

    def say(self, text: str) -> None:
        """Lines that stay, above the one that moves. Control characters are taken out of them."""
        self._erase()
        for line in text.splitlines():
            self._put(f"{plain(line)}\n")

    def close(self) -> None:
        """The line that moved stays where it is, and what comes next begins below it."""
        if self._is_drawn:
            self._put("\n")
        self._is_drawn = False

    def _line(self, moment: Moment) -> str:
        left_s = None
        if self._rate.step_s is not None:
            left_s = max(self._steps - moment.step, 0) * self._rate.step_s
        return progress_line(moment, steps=self._steps, left_s=left_s, width=self._width)

    def _erase(self) -> None:
        if self._is_drawn:
            self._put(CLEAR_LINE)
        self._is_drawn = False

    def _put(self, text: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):
            return


def progress_line(
    moment: Moment, *, steps: int, left_s: float | None = None, width: int = WIDTH
) -> str:
    """1200/5000  loss 2.346  12.35 K tok/s  43.1 % MFU  3.50 min left  1.25/1.20 GiB.

    Steps done of all, and memory as it was measured and predicted. What there is no room for is
    left out, the least important first.
    A wait is shown where the loop waited for data for half a percent of the step or more.
    """
    head = f"{moment.step}/{steps}{GAP}loss {loss_text(moment.loss)}"
    fitting: dict[int, str] = {}
    room = width - len(head)
    for place, text in _by_importance(moment, left_s):
        if text and len(GAP) + len(text) <= room:
            fitting[place] = text
            room -= len(GAP) + len(text)
    return GAP.join([head, *(fitting[place] for place in sorted(fitting))])[:width]


def _by_importance(moment: Moment, left_s: float | None) -> Iterator[tuple[int, str]]:
    """(place in the line, text), the most important first."""
    if moment.tokens_per_s is not None:
        yield 0, f"{format_count(round(moment.tokens_per_s))} tok/s"
    if left_s is not None:
        yield 3, f"{format_seconds(left_s)} left"
    if moment.step_s and moment.wait_s >= WAITING * moment.step_s:
        yield 2, f"wait {format_fraction(moment.wait_s / moment.step_s)}"
    if moment.mfu is not None:
        yield 1, f"{format_fraction(moment.mfu)} MFU"
    yield 4, _memory_text(moment.measured_bytes, moment.predicted_bytes)


def _memory_text(measured_bytes: int | None, predicted_bytes: int | None) -> str:
    """1.25/1.20 GiB, or with both units where they are not the same."""
    sizes = [format_bytes(size) for size in (measured_bytes, predicted_bytes) if size is not None]
    if len(sizes) < 2:
        return "".join(sizes)
    (measured, unit), (predicted, other) = (text.split() for text in sizes)
    return f"{measured}/{predicted} {unit}" if unit == other else "/".join(sizes)


def loss_text(loss: float) -> str:
    """Four digits that count: 10.82, 2.346, 0.1235, 1.235e-05; nan, inf."""
    if loss == 0 or not math.isfinite(loss):
        return f"{loss:.3f}"
    return f"{loss:#.4g}" if 0.01 <= abs(loss) < 999.95 else f"{loss:.3e}"


# Predicted beside measured ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of a plan: memory of a category, or the time of a step."""

    name: str
    predicted: float | int | None
    unit: Unit
    measured: float | int | None = None
    is_total: bool = False
    """Stands below a line."""


def plan_table(title: str, rows: Sequence[Row], *, width: int = WIDTH) -> str:
    """The rows with their predictions; with what was measured, too, where any row has it.

    The last column is how far the measurement is above the prediction. Each line has its end.
    """
    is_measured = any(row.measured is not None for row in rows)
    headers = ["predicted", "measured", "difference"] if is_measured else ["predicted"]
    cells = [_cells(row)[: len(headers)] for row in rows]
    columns = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    names = max((len(plain(row.name)) for row in rows), default=0)
    names = min(names, width - len(INDENT) - sum(len(GAP) + column for column in columns))

    def line(name: str, texts: Sequence[str]) -> str:
        right = (text.rjust(room) for text, room in zip(texts, columns, strict=True))
        return f"{INDENT}{GAP.join([plain(name)[:names].ljust(names), *right])}".rstrip()

    lines = [plain(title)[:width], line("", headers)]
    for row, texts in zip(rows, cells, strict=True):
        if row.is_total:
            lines.append(line("", ["-" * column for column in columns]))
        lines.append(line(row.name, texts))
    return "".join(f"{line}\n" for line in lines)


def _cells(row: Row) -> list[str]:
    """Predicted, measured, difference."""
    write = FORMATS[row.unit]
    texts = ["" if value is None else write(value) for value in (row.predicted, row.measured)]
    if row.measured is None or not row.predicted:
        return [*texts, ""]
    difference = row.measured / row.predicted - 1
    return [*texts, f"{'+' if difference >= 0 else ''}{format_fraction(difference)}"]


# Streams ----------------------------------------------------------------------------------------


def is_terminal(stream: Stream) -> bool:
    """Whether a line can be drawn over itself there."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def plain(text: str) -> str:
    """The text without control, escape and direction characters; white space becomes spaces."""
    kept = (char if char.isprintable() else " " if char.isspace() else "" for char in text)
    return "".join(kept)

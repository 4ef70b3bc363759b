"""How a training shows its progress: one refreshed line on a terminal, sparse lines elsewhere.

After the first measured step the plan's table is printed again, with measurements beside it.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from torchtally.progress import WIDTH, StatusLine, StepRecord, TextStream
from torchtally.report.loss_plot import LossCurve, loss_plot
from torchtally.report.training_plan import AT_LEAST, PlanRow, plan_table
from torchtally.units import (
    format_bytes,
    format_count,
    format_fraction,
    format_loss,
    format_seconds,
)

WARMING_STEPS = 3
"""Steps that no rate is taken from: they compile, make optimizer state and try out kernels."""
SMOOTHING = 0.1
"""Weight of the newest step in the mean: steps longer than ten ago hardly count."""
GAP = "  "
WAITING = 0.005
"""Of a step: a shorter wait is not shown."""


class Rate:
    """Seconds per step, smoothed; the first steps do not count."""

    def __init__(self, *, warming_steps: int = WARMING_STEPS) -> None:
        self.step_s: float | None = None
        """Smoothed; None until the first steps are over."""
        self._to_ignore = warming_steps
        self._weight = 0.0
        self._sum_s = 0.0

    def add(self, step_s: float) -> None:
        """A step has taken so long, without evaluations, samples and checkpoints."""
        if self._to_ignore > 0:
            self._to_ignore -= 1
            return
        # Divided by the weight so far, the mean has no bias towards 0 in the first steps.
        self._sum_s += SMOOTHING * (step_s - self._sum_s)
        self._weight += SMOOTHING * (1 - self._weight)
        self.step_s = self._sum_s / self._weight


class TrainingProgress:
    """Progress as one line that is redrawn on a terminal, elsewhere a line for every `every`-th
    step.
    """

    def __init__(
        self,
        stream: TextStream,
        *,
        steps: int,
        rate: Rate,
        every: int,
        predicted_bytes: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
        width: int = WIDTH,
    ) -> None:
        self._status = StatusLine(stream, clock=clock, width=width)
        self._steps, self._rate, self._every = steps, rate, every
        self._predicted_bytes = predicted_bytes
        self._has_shown = False

    def show(self, step: int, record: StepRecord) -> None:
        """The step, where it is due: the first, the last, and some between."""
        is_last = step >= self._steps
        if self._status.is_redrawn:
            is_due = self._status.is_due()
        else:
            is_due = not self._has_shown or step % self._every == 0
        if is_last or is_due:
            self._status.draw(self._line(step, record))
        self._has_shown = True

    def say(self, text: str) -> None:
        """Lines that stay, above the one that is redrawn."""
        self._status.say(text)

    def close(self) -> None:
        """Keep the line; what comes next begins below it."""
        self._status.keep()

    def _line(self, step: int, record: StepRecord) -> str:
        left_s = None
        if self._rate.step_s is not None:
            left_s = max(self._steps - step, 0) * self._rate.step_s
        return progress_line(
            step,
            record,
            steps=self._steps,
            left_s=left_s,
            width=self._status.width,
            predicted_bytes=self._predicted_bytes,
        )


def progress_line(
    step: int, record: StepRecord, *, steps: int, left_s: float | None = None,
    predicted_bytes: int | None = None, width: int = WIDTH,
) -> str:  # fmt: skip
    """1200/5000  loss 2.346  12.35 K tok/s  43.1 % MFU  3.50 min left  1.25/1.20 GiB.

    Steps done and total, then memory measured and predicted. What does not fit is dropped, the
    least important first. A wait for data is shown from half a percent of the step on.
    """
    head = f"{step}/{steps}{GAP}loss {format_loss(record.loss)}"
    fitting: dict[int, str] = {}
    room = width - len(head)
    for place, text in _by_importance(record, left_s, predicted_bytes):
        if text and len(GAP) + len(text) <= room:
            fitting[place] = text
            room -= len(GAP) + len(text)
    return GAP.join([head, *(fitting[place] for place in sorted(fitting))])[:width]


def _by_importance(
    record: StepRecord, left_s: float | None, predicted_bytes: int | None
) -> Iterator[tuple[int, str]]:
    """(place in the line, text), the most important first."""
    if record.tokens_per_s:
        yield 0, f"{format_count(round(record.tokens_per_s))} tok/s"
    if left_s is not None:
        yield 3, f"{format_seconds(left_s)} left"
    if record.step_s and record.wait_s >= WAITING * record.step_s:
        yield 2, f"wait {format_fraction(record.wait_s / record.step_s)}"
    if record.mfu is not None:
        yield 1, f"{format_fraction(record.mfu)} MFU"
    yield 4, _memory_text(record.peak_bytes, predicted_bytes)


def _memory_text(measured_bytes: int | None, predicted_bytes: int | None) -> str:
    """1.25/1.20 GiB, or with both units where they are not the same."""
    sizes = [format_bytes(size) for size in (measured_bytes, predicted_bytes) if size is not None]
    if len(sizes) < 2:
        return "".join(sizes)
    (measured, unit), (predicted, other) = (text.split() for text in sizes)
    return f"{measured}/{predicted} {unit}" if unit == other else "/".join(sizes)


# The training ------------------------------------------------------------------------------------


class TrainingDisplay:
    """Observes a training and shows its steps, its notes, and the plan beside measurements."""

    def __init__(
        self,
        *,
        steps: int,
        every: int,
        rows: Sequence[PlanRow],
        stream: TextStream | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._rows = rows
        self._rate = Rate()
        peak = next((row.predicted for row in rows if row.name == "peak"), None)
        self._progress = TrainingProgress(
            stream or sys.stderr,
            steps=steps,
            rate=self._rate,
            every=every,
            clock=clock,
            predicted_bytes=None if peak is None else int(peak),
        )
        self._has_compared = False

    def on_step(self, step: int, record: StepRecord) -> None:
        assert record.step_s is not None
        self._rate.add(record.step_s)
        self._progress.show(step, record)
        if self._rate.step_s is not None and record.memory_bytes and not self._has_compared:
            self._has_compared = True
            self._compare(record, self._rate.step_s)

    def _compare(self, record: StepRecord, step_s: float) -> None:
        """Print the plan's table again, with measurements beside the predictions."""
        measured = {
            **record.memory_bytes,
            "peak": record.peak_bytes,
            "step": step_s,
            AT_LEAST: step_s,
        }
        measured["activations"] = measured["activations"] or None
        rows = [replace(row, measured=measured.get(row.name)) for row in self._rows]
        self._progress.say(plan_table("Predicted beside measured", rows))

    def on_note(self, text: str) -> None:
        self._progress.say(f"tally: {text}")

    def on_evaluation(self, step: int, loss_nats: float, tokens: int) -> None:
        self._progress.say(
            f"step {step}: validation loss {format_loss(loss_nats)} ({tokens} targets)"
        )

    def on_sample(self, step: int, text: str) -> None:
        self._progress.say(f"step {step}, a sample:")
        self._progress.say(text)

    def close(self) -> None:
        self._progress.close()


def closing_text(
    curve: LossCurve,
    *,
    steps: int,
    log: str,
    stopped: str = "",
    width: int = WIDTH,
    encoding: str | None = "utf-8",
) -> str:
    """The loss curve, the last losses, and where the log is; `stopped` says by what it was."""
    text, last = "", "no loss"
    if curve.training:
        text = loss_plot(curve, width=width, encoding=encoding)
        last = f"loss {format_loss(curve.training[-1][1])}"
    if curve.validation:
        last += f", validation loss {format_loss(curve.validation[-1][1])}"
    text += f"{steps} steps, {last}. Logged in {log}.\n"
    return text + (f"Stopped by {stopped}.\n" if stopped else "")

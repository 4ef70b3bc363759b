"""How a training shows its progress: one refreshed line on a terminal, sparse lines elsewhere.

After the first measured step the plan's table is printed again, with measurements beside it.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from torchtally.progress import WIDTH, StatusLine, TextStream
from torchtally.report.loss_plot import LossCurve, loss_plot
from torchtally.report.training_plan import PlanRow, plan_table
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
    """Seconds per step, smoothed; the first steps and pauses do not count.

    Evaluations, samples and checkpoints run in `pause()`.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.perf_counter, warming_steps: int = WARMING_STEPS
    ) -> None:
        self.step_s: float | None = None
        """Smoothed; None until the first steps are over."""
        self._clock = clock
        self._to_ignore = warming_steps
        self._since_s = clock()
        self._weight = 0.0
        self._sum_s = 0.0

    def lap(self) -> float:
        """Ends a step: the seconds since the last one ended, less pauses."""
        now_s = self._clock()
        lap_s, self._since_s = now_s - self._since_s, now_s
        if self._to_ignore > 0:
            self._to_ignore -= 1
        else:
            # Divided by the weight so far, the mean has no bias towards 0 in the first steps.
            self._sum_s += SMOOTHING * (lap_s - self._sum_s)
            self._weight += SMOOTHING * (1 - self._weight)
            self.step_s = self._sum_s / self._weight
        return lap_s

    @contextmanager
    def pause(self) -> Iterator[None]:
        """The block counts towards no step."""
        paused_s = self._clock()
        try:
            yield
        finally:
            self._since_s += self._clock() - paused_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """Where a training is. None is unknown, and is not shown."""

    step: int
    """Steps done."""
    loss: float
    step_s: float | None = None
    """Of this step alone; the wait is shown as a share of it."""
    tokens_per_s: float | None = None
    mfu: float | None = None
    wait_s: float = 0.0
    measured_bytes: int | None = None
    """Device memory at the peak."""
    predicted_bytes: int | None = None


class TrainingProgress:
    """On a terminal one line that is redrawn, elsewhere a line for every `every`-th step."""

    def __init__(
        self,
        stream: TextStream,
        *,
        steps: int,
        rate: Rate,
        every: int,
        clock: Callable[[], float] = time.perf_counter,
        width: int = WIDTH,
    ) -> None:
        self._status = StatusLine(stream, clock=clock, width=width)
        self._steps, self._rate, self._every = steps, rate, every
        self._has_shown = False

    def show(self, state: TrainingState) -> None:
        """The state, where it is due: the first, the last, and some between."""
        is_last = state.step >= self._steps
        if self._status.is_redrawn:
            is_due = self._status.is_due()
        else:
            is_due = not self._has_shown or state.step % self._every == 0
        if is_last or is_due:
            self._status.draw(self._line(state))
        self._has_shown = True

    def say(self, text: str) -> None:
        """Lines that stay, above the one that is redrawn."""
        self._status.say(text)

    def close(self) -> None:
        """Keep the line; what comes next begins below it."""
        self._status.keep()

    def _line(self, state: TrainingState) -> str:
        left_s = None
        if self._rate.step_s is not None:
            left_s = max(self._steps - state.step, 0) * self._rate.step_s
        return progress_line(state, steps=self._steps, left_s=left_s, width=self._status.width)


def progress_line(
    state: TrainingState, *, steps: int, left_s: float | None = None, width: int = WIDTH
) -> str:
    """1200/5000  loss 2.346  12.35 K tok/s  43.1 % MFU  3.50 min left  1.25/1.20 GiB.

    Steps done and total, then memory measured and predicted. What does not fit is dropped, the
    least important first. A wait for data is shown from half a percent of the step on.
    """
    head = f"{state.step}/{steps}{GAP}loss {format_loss(state.loss)}"
    fitting: dict[int, str] = {}
    room = width - len(head)
    for place, text in _by_importance(state, left_s):
        if text and len(GAP) + len(text) <= room:
            fitting[place] = text
            room -= len(GAP) + len(text)
    return GAP.join([head, *(fitting[place] for place in sorted(fitting))])[:width]


def _by_importance(state: TrainingState, left_s: float | None) -> Iterator[tuple[int, str]]:
    """(place in the line, text), the most important first."""
    if state.tokens_per_s is not None:
        yield 0, f"{format_count(round(state.tokens_per_s))} tok/s"
    if left_s is not None:
        yield 3, f"{format_seconds(left_s)} left"
    if state.step_s and state.wait_s >= WAITING * state.step_s:
        yield 2, f"wait {format_fraction(state.wait_s / state.step_s)}"
    if state.mfu is not None:
        yield 1, f"{format_fraction(state.mfu)} MFU"
    yield 4, _memory_text(state.measured_bytes, state.predicted_bytes)


def _memory_text(measured_bytes: int | None, predicted_bytes: int | None) -> str:
    """1.25/1.20 GiB, or with both units where they are not the same."""
    sizes = [format_bytes(size) for size in (measured_bytes, predicted_bytes) if size is not None]
    if len(sizes) < 2:
        return "".join(sizes)
    (measured, unit), (predicted, other) = (text.split() for text in sizes)
    return f"{measured}/{predicted} {unit}" if unit == other else "/".join(sizes)


# The training ------------------------------------------------------------------------------------


class StepMetrics(Protocol):
    """What is shown of a step."""

    @property
    def loss(self) -> float: ...
    @property
    def step_s(self) -> float: ...
    @property
    def tokens_per_s(self) -> float: ...
    @property
    def mfu(self) -> float | None: ...
    @property
    def wait_s(self) -> float: ...


class MeasuredMemory(Protocol):
    """What was measured on the tensors."""

    @property
    def parameters_bytes(self) -> int: ...
    @property
    def gradients_bytes(self) -> int: ...
    @property
    def optimizer_state_bytes(self) -> int: ...
    @property
    def activations_bytes(self) -> int: ...
    @property
    def peak_allocated_bytes(self) -> int | None: ...


class ValidationLoss(Protocol):
    """The result of an evaluation."""

    @property
    def loss_nats(self) -> float: ...
    @property
    def tokens(self) -> int: ...


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
        self._rate = Rate(clock=clock)
        self._progress = TrainingProgress(
            stream or sys.stderr, steps=steps, rate=self._rate, every=every, clock=clock
        )
        peak = next((row.predicted for row in rows if row.name == "peak"), None)
        self._predicted_bytes = None if peak is None else int(peak)
        self._has_compared = False

    def on_step(self, step: int, record: StepMetrics, footprint: MeasuredMemory | None) -> None:
        self._rate.lap()
        self._progress.show(
            TrainingState(
                step=step,
                loss=record.loss,
                step_s=record.step_s,
                tokens_per_s=record.tokens_per_s or None,
                mfu=record.mfu,
                wait_s=record.wait_s,
                measured_bytes=None if footprint is None else footprint.peak_allocated_bytes,
                predicted_bytes=self._predicted_bytes,
            )
        )
        if self._rate.step_s is not None and footprint is not None and not self._has_compared:
            self._has_compared = True
            self._compare(footprint, self._rate.step_s)

    def _compare(self, footprint: MeasuredMemory, step_s: float) -> None:
        """Print the plan's table again, with measurements beside the predictions."""
        measured: dict[str, float | int | None] = {
            "parameters": footprint.parameters_bytes,
            "gradients": footprint.gradients_bytes,
            "optimizer state": footprint.optimizer_state_bytes,
            "activations": footprint.activations_bytes or None,
            "peak": footprint.peak_allocated_bytes,
            "step": step_s,
        }
        rows = [replace(row, measured=measured.get(row.name)) for row in self._rows]
        self._progress.say(plan_table("Predicted beside measured", rows))

    def on_note(self, text: str) -> None:
        self._progress.say(f"tally: {text}")

    def on_evaluation(self, step: int, evaluation: ValidationLoss) -> None:
        self._progress.say(
            f"step {step}: validation loss {format_loss(evaluation.loss_nats)} "
            f"({evaluation.tokens} targets)"
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

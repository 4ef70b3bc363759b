"""`torchtally.monitor`: a training of the user's own beside its prediction, by two lines.

monitor = torchtally.monitor("run.tally")       # or the model and its optimizer
for batch in loader:
    ...                                         # the loop's own code, unchanged
    monitor.step()
"""

import atexit
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from torchtally.chips import find_chip
from torchtally.errors import TallyError, UsageError
from torchtally.ledger import account
from torchtally.live.causes import advice
from torchtally.live.comparison import StepComparison, TimedSteps, values_of
from torchtally.live.first_batch import capture, step_request
from torchtally.live.forked import ForkedCall, can_fork
from torchtally.live.prediction import PredictedStep, Source, predicted_step, prediction_of
from torchtally.live.sentences import comparison_text, warning
from torchtally.live.stopwatch import CudaStopwatch, HostStopwatch, device_in_use, stopwatch_of
from torchtally.live.trackers import LogFunction, log_functions
from torchtally.models.inputs import Inputs
from torchtally.models.optimizers import MakeOptimizer
from torchtally.models.step import STEP, Loss, StepRequest, run_step
from torchtally.numerics.watch import LossScale, NumbersWatch
from torchtally.timing.targets import CPU, known_roofline, roofline
from torchtally.virtual.session import is_simulated

EVERY = 10
"""Steps between two logs."""
PATIENCE_S = 60.0
"""That the end of a training waits for a prediction that is still being made."""

INSTEAD = (
    "  Give a prediction made before instead: run.tally, as `tally run` writes it, or a "
    "torchtally.summary of the model."
)


class Monitor:
    """Measure a loop's steps and hold them against a prediction; call `step()` after each step.

    Args:
        prediction: a trace's file (`tally run` writes run.tally), a `Trace`, `Ledger` or
            `torchtally.summary`; or the model itself: the first batch that it is trained on is
            predicted in a child process, while the training goes on. None: measure alone.
        optimizer: the loop's own, or one by name; for the model.
        log: gets the values every few steps: a function of a dict and the step (wandb.log,
            trackio.log, accelerator.log), a SummaryWriter of TensorBoard, or a list of such.
        every: steps between two logs.
        gpu: predict for this chip. Default: the trace's; of a model this machine's GPU, or this CPU
            once `tally bench` has measured it.
        tolerance: a fraction; warn beyond it. Default: the typical error of such a prediction
            (of the time 4.2 % by published rates of the chip, 4.5 % by its data sheet, 11.2 % by a
            calibration; 5 % of memory).
        micro_batches: forward and backward passes of a step; for the model.
        loss: a function of what the model returns, where the model does not return the loss.
        device: the one to measure. Default: the model's, else a GPU on which something is
            allocated at the first step, else the host.

    Memory is measured on CUDA devices. Values are in seconds, bytes and percent, see
    `comparison.values_of`. A loop that runs on a simulated GPU is measured there, alone where the
    trace's file is what that run is about to write.

    Raises UsageError for arguments that mean nothing, TraceFileError for a file that is no trace.
    """

    def __init__(
        self,
        prediction: Source | nn.Module | None = None,
        optimizer: Optimizer | MakeOptimizer | str | None = None,
        *,
        log: Any = None,
        every: int = EVERY,
        gpu: str | None = None,
        tolerance: float | None = None,
        micro_batches: int = 1,
        loss: Loss | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if every < 1 or micro_batches < 1:
            raise UsageError("monitor: expected every and micro_batches of at least 1.")
        if tolerance is not None and not tolerance > 0:
            raise UsageError(f"monitor: expected a tolerance above 0, got {tolerance}.")
        self._gpu, self._tolerance, self._every = gpu, tolerance, every
        self._logs = log_functions(log)
        self._device = None if device is None else torch.device(device)
        self._model: nn.Module | None = None
        self._steps = TimedSteps()
        self._times: HostStopwatch | CudaStopwatch | None = None
        self._call: ForkedCall | None = None
        self._number = 0
        self._is_checked = False
        self._has_told = False
        if isinstance(prediction, nn.Module):
            model = self._model = prediction

            def predict_first(inputs: Inputs, autocast: torch.dtype | None) -> None:
                self.predict_batch(
                    model,
                    lambda: step_request(model, inputs, autocast, optimizer, micro_batches, loss),
                )

            if not is_simulated():  # else there is nothing to predict
                capture(model, predict_first)
        elif prediction is not None and not is_to_be_made(prediction):
            self.predict(prediction_of(prediction, gpu))

    # What is predicted ---------------------------------------------------------------------------

    @property
    def prediction(self) -> PredictedStep | None:
        """None while it is being made, and where there is none."""
        predicted = self._steps.predicted
        return predicted if predicted.file else None

    def predict(self, prediction: PredictedStep) -> None:
        """Hold the steps against this one."""
        self._steps.predicted = prediction.within(self._tolerance)

    def predict_batch(self, of: nn.Module, request_of: Callable[[], StepRequest]) -> None:
        """Predict from a module's first batch, in a child process. What prevents it is said."""
        try:
            target = self._gpu or _chip_at_hand(self._measured_device())
            if not can_fork():
                raise UsageError("this system cannot fork. Give a trace or a torchtally.summary.")
            request = request_of()
        except TallyError as error:
            say(f"not predicted: {error}")
            return

        def predict() -> PredictedStep:
            # As at a step's beginning: the thread's autocast is the caller's.
            with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
                timing = roofline(target)
                trace, _ = run_step(request, timing)
                ledger = account(trace, roofline=timing, step=STEP)
                return predicted_step(ledger, f"the first batch of {type(of).__name__}")

        try:
            self._call = ForkedCall(predict)
        except OSError as error:
            say(f"not predicted: no process could be forked ({error.strerror}).")
            return
        atexit.register(_cancel, weakref.ref(self._call))

    # What is measured ----------------------------------------------------------------------------

    def step(self, number: int | None = None) -> None:
        """A step of the loop has ended: the `number`-th, as the loop counts; default: one more.

        Does not make the GPU wait.
        """
        if self._times is None:
            self._times = stopwatch_of(self._measured_device())
        self._number = self._number + 1 if number is None else number
        for step_s in self._times.mark():
            self._steps.add(step_s)
        self._update(0.0)
        if self._number % self._every == 0:
            self._judge()
            self._log()

    def values(self) -> dict[str, float | int]:
        """Measured and predicted, of the steps since this was last asked for; see `values_of`."""
        if not self._measure_memory():
            return {}
        values = values_of(self._steps.compare(self._steps.median_s))
        self._steps.steps_s.clear()
        return values

    def compare(self) -> StepComparison | None:
        """The last few steps and the prediction; None before the first."""
        return self._steps.recent() if self._measure_memory() else None

    def close(self) -> None:
        """Wait for a prediction that is still being made, and say how both compare."""
        self._update(PATIENCE_S)
        if self._call is not None:
            self.cancel()
            say(f"not predicted: took more than {PATIENCE_S:.0f} s.")
        self._judge()

    def cancel(self) -> None:
        """End a prediction that is still being made."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self.close()
        else:
            self.cancel()

    def __repr__(self) -> str:
        comparison = self.compare()
        text = "no steps" if comparison is None else comparison_text(comparison)
        return f"<Monitor of {self._number} steps: {text}>"

    def _measured_device(self) -> torch.device:
        return device_in_use(self._model) if self._device is None else self._device

    def _update(self, wait_s: float) -> None:
        """Take the child's prediction once it is there, and see which chip it is of."""
        if self._call is not None:
            try:
                prediction = self._call.answer(wait_s)
            except TallyError as error:
                self._call = None
                say(f"not predicted: {error}\n{INSTEAD}")
                return
            if prediction is not None:
                self._call = None
                self.predict(prediction)
        if not self._is_checked and self.prediction is not None:
            self._is_checked = True
            self._check_chip(self.prediction.chip)

    def _measure_memory(self) -> bool:
        """Whether there was a step: its peaks are taken down."""
        if self._times is not None:
            self._steps.peak_bytes, self._steps.reserved_bytes = self._times.peaks()
        return self._times is not None

    def _judge(self) -> None:
        """Say once how steps compare, and of each kind once that they deviate."""
        comparison = self.compare()
        if comparison is None or comparison.step_s is None or self.prediction is None:
            return
        text = comparison_text(comparison)
        if not self._has_told:
            self._has_told = True
            say(f"step {self._number}: {text}")
        for kind in self._steps.new_deviations(comparison):
            say(f"{warning(kind, comparison, text)}.\n{advice(kind, self._model)}")

    def _check_chip(self, there: str | None) -> None:
        """Say it where the prediction is of another chip than this machine's one."""
        here = _name_at_hand(self._measured_device())
        self._steps.is_same_chip = here == there
        if here != there:
            say(
                f"warning: predicted for {there}, measured on {here}: times are not compared. "
                "Name this machine's chip: gpu=..."
            )

    def _log(self) -> None:
        """A log that fails is dropped: none is worth a training."""
        values = self.values() if self._logs else {}
        for log in tuple(self._logs):
            try:
                log(dict(values), self._number)
            except Exception as error:
                self._logs.remove(log)
                what = " ".join(f"{type(error).__name__}: {error}".split())
                say(f"warning: a log failed and is dropped from step {self._number} on ({what}).")


monitor = Monitor
"""As loops call it."""


def is_to_be_made(prediction: Any) -> bool:
    """Whether it will be made on a simulated GPU: a trace's file that is not there yet. It may be
    this very run's.
    """
    is_path = isinstance(prediction, str | os.PathLike)
    return is_path and is_simulated() and not os.path.exists(prediction)


class MonitoredTraining:
    """Options of a framework's callback, and the monitor while it trains."""

    def __init__(
        self,
        prediction: Source | None = None,
        *,
        gpu: str | None = None,
        tolerance: float | None = None,
        numbers_every: int | None = None,
    ) -> None:
        self._prediction, self._gpu, self._tolerance = prediction, gpu, tolerance
        self._numbers_every = numbers_every
        self._monitor: Monitor | None = None
        self._watch: NumbersWatch | None = None

    def _watch_numbers(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        scaler: LossScale | None,
        log: LogFunction | None = None,
    ) -> None:
        """Count gradients and updates that are lost, where that was asked for."""
        if self._numbers_every is not None:
            self._watch = NumbersWatch(
                model, optimizer, every=self._numbers_every, scaler=scaler, log=log, say=say
            )

    def _end(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None


def _chip_at_hand(device: torch.device) -> str:
    """Raises UsageError for one of which no speed is known."""
    name = _name_at_hand(device)
    if known_roofline(name) is None:
        advice = "Run `tally bench --device cpu` once, or name" if name == CPU else "Name"
        raise UsageError(f"the speed of {name} is unknown. {advice} a chip: gpu='H100-SXM'.")
    return name


def _name_at_hand(device: torch.device) -> str:
    """Name as our tables have it, or as the driver does."""
    if device.type != "cuda":
        return CPU
    name = torch.cuda.get_device_name(device)
    known_chip = find_chip(name)
    return name if known_chip is None else known_chip.name


def _cancel(call: "weakref.ref[ForkedCall]") -> None:
    if (alive := call()) is not None:
        alive.cancel()


def say(text: str) -> None:
    """Prints on the first rank alone."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_rank()):
        print(f"torchtally: {text}", file=sys.stderr, flush=True)

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
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from torchtally.chips import find_chip
from torchtally.errors import TallyError, UsageError
from torchtally.ledger import account
from torchtally.models.inputs import Inputs
from torchtally.models.optimizers import MakeOptimizer
from torchtally.models.step import STEP, Loss, run_step
from torchtally.monitoring.comparison import Compared, MonitoredSteps, values_of
from torchtally.monitoring.first_batch import FirstBatch, autocast_off, capture
from torchtally.monitoring.forked import ForkedCall, can_fork
from torchtally.monitoring.prediction import Source, StepPrediction, of_ledger, prediction_of
from torchtally.monitoring.stopwatch import StepStopwatch, device_in_use, stopwatch_of
from torchtally.monitoring.wording import beside, warning
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

LogFunction = Callable[[dict[str, Any], int], Any]
"""Takes values by name, and the step: wandb.log, trackio.log, accelerator.log."""


def monitor(
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
) -> "Monitor":
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
    if every < 1 or micro_batches < 1:
        raise UsageError("monitor: expected every and micro_batches of at least 1.")
    if tolerance is not None and not tolerance > 0:
        raise UsageError(f"monitor: expected a tolerance above 0, got {tolerance}.")
    model = prediction if isinstance(prediction, nn.Module) else None
    loop_monitor = Monitor(
        model, gpu, tolerance=tolerance, every=every, logs=_logs(log),
        device=None if device is None else torch.device(device),
    )  # fmt: skip
    if model is not None:
        loop_monitor.predict_first_batch(optimizer, micro_batches, loss)
    elif prediction is not None and not is_to_be_made(prediction):
        assert not isinstance(prediction, nn.Module)
        loop_monitor.predict(prediction_of(prediction, gpu))
    return loop_monitor


def is_to_be_made(prediction: Any) -> bool:
    """Whether it will be made on a simulated GPU: a trace's file that is not there yet. It may be
    this very run's.
    """
    is_path = isinstance(prediction, str | os.PathLike)
    return is_path and is_simulated() and not os.path.exists(prediction)


def _logs(log: Any) -> tuple["GuardedLog", ...]:
    """Raises UsageError for what takes no values."""
    if log is None:
        return ()
    if isinstance(log, Iterable) and not callable(log):
        return tuple(guarded for each in log for guarded in _logs(each))
    if hasattr(log, "add_scalar"):
        return (GuardedLog(partial(_write_scalars, log)),)
    if not callable(log):
        raise UsageError(
            f"monitor: log is {type(log).__name__}. These work: wandb.log, trackio.log, "
            "accelerator.log, a SummaryWriter, or any function of a dict and the step."
        )
    return (GuardedLog(log),)


def _write_scalars(writer: Any, values: Mapping[str, float], step: int) -> None:
    for name, value in values.items():
        writer.add_scalar(name, value, step)


class GuardedLog:
    """A log that is dropped when it fails: none is worth a training."""

    def __init__(self, log: LogFunction) -> None:
        self._log: LogFunction | None = log

    def write(self, values: dict[str, Any], step: int) -> None:
        """Raises nothing; what fails is said once."""
        if self._log is None:
            return
        try:
            self._log(values, step)
        except Exception as error:
            self._log = None
            what = " ".join(f"{type(error).__name__}: {error}".split())
            say(f"warning: a log failed and is dropped from step {step} on ({what}).")


class Monitor:
    """A loop's steps beside their prediction."""

    def __init__(
        self,
        model: nn.Module | None,
        gpu: str | None = None,
        *,
        tolerance: float | None = None,
        every: int = EVERY,
        logs: tuple[GuardedLog, ...] = (),
        device: torch.device | None = None,
    ) -> None:
        self._model, self._gpu, self._tolerance = model, gpu, tolerance
        self._every, self._logs, self._device = every, logs, device
        self._comparison = MonitoredSteps()
        self._times: StepStopwatch | None = None
        self._call: ForkedCall | None = None
        self._number = 0
        self._is_checked = False
        self._has_told = False

    # What is predicted ---------------------------------------------------------------------------

    @property
    def prediction(self) -> StepPrediction | None:
        """None while it is being made, and where there is none."""
        return self._comparison.prediction

    def predict(self, prediction: StepPrediction) -> None:
        """Hold the steps against this one."""
        self._comparison.prediction = prediction.within(self._tolerance)

    def predict_first_batch(
        self,
        optimizer: Optimizer | MakeOptimizer | str | None,
        micro_batches: int,
        loss: Loss | None,
    ) -> None:
        """Predict from the model's next call in training."""
        assert self._model is not None
        model = self._model

        def predict_first(inputs: Inputs, autocast: torch.dtype | None) -> None:
            self.predict_batch(
                FirstBatch(
                    model=model, inputs=inputs, autocast=autocast, optimizer=optimizer,
                    micro_batches=micro_batches, loss=loss,
                )
            )  # fmt: skip

        if not is_simulated():  # there is nothing to predict: it is a prediction
            capture(model, predict_first)

    def predict_batch(self, batch: FirstBatch) -> None:
        """Predict from this one, in a child process. What prevents it is said."""
        try:
            target = self._gpu or _chip_at_hand(self._measured_device())
            if not can_fork():
                raise UsageError("this system cannot fork. Give a trace or a torchtally.summary.")
            request = batch.request()
        except TallyError as error:
            self.say_unpredicted(error)
            return
        name = f"the first batch of {type(batch.model).__name__}"

        def predict() -> StepPrediction:
            with autocast_off():
                timing = roofline(target)
                trace, _ = run_step(request, timing)
                return of_ledger(account(trace, roofline=timing, step=STEP), name)

        try:
            self._call = ForkedCall(predict)
        except OSError as error:
            self.say_unpredicted(TallyError(f"no process could be forked ({error.strerror})."))
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
        self._times.mark()
        for step_s in self._times.seconds():
            self._comparison.time(step_s)
        self._update(0.0)
        if self._number % self._every == 0:
            self._judge()
            self._log()

    def values(self) -> dict[str, float | int]:
        """Measured and predicted, of the steps since this was last asked for; see `values_of`."""
        if self._times is None:
            return {}
        return values_of(self._comparison.since_log(self._times.memory()))

    def compare(self) -> Compared | None:
        """The last few steps beside the prediction; None before the first."""
        return None if self._times is None else self._comparison.recent(self._times.memory())

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
        compared = self.compare()
        text = "no steps" if compared is None else beside(compared)
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
                self.say_unpredicted(UsageError(f"{error}\n{INSTEAD}"))
                return
            if prediction is not None:
                self._call = None
                self.predict(prediction)
        if not self._is_checked and self.prediction is not None:
            self._is_checked = True
            self._check_chip(self.prediction.step.chip)

    def _judge(self) -> None:
        """Say once how steps compare, and of each kind once that they parted."""
        comparison = self._comparison
        if self._times is None or comparison.prediction is None or not comparison.is_settled:
            return
        memory = self._times.memory()
        if not self._has_told:
            self._has_told = True
            say(f"step {self._number}: {beside(comparison.recent(memory))}")
        for kind, compared in comparison.partings(memory):
            say(warning(kind, compared, self._model))

    def _check_chip(self, there: str | None) -> None:
        """Say it where the prediction is of another chip than this machine's one."""
        here = _name_at_hand(self._measured_device())
        self._comparison.is_same_chip = here == there
        if here != there:
            say(
                f"warning: predicted for {there}, measured on {here}: times are not compared. "
                "Name this machine's chip: gpu=..."
            )

    def _log(self) -> None:
        if self._logs:
            values = self.values()
            for log in self._logs:
                log.write(dict(values), self._number)

    def say_unpredicted(self, error: TallyError) -> None:
        """Why there is no prediction; the loop is measured all the same."""
        say(f"not predicted: {error}")


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

"""Predicted and measured steps in the loggers of Lightning.

trainer = Trainer(callbacks=[torchtally.LightningTallyCallback()])
"""

import sys
import warnings
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchtally.errors import UsageError
from torchtally.live.first_batch import step_request
from torchtally.live.monitor import MonitoredTraining, monitor
from torchtally.models.inputs import Inputs
from torchtally.models.step import StepRequest
from torchtally.torch_private.lightning import callback_base

if TYPE_CHECKING:
    Callback = object
else:
    Callback = callback_base("LightningTallyCallback")

AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""By the names that Trainer(precision=) has for them."""
WHOLE = ("32-true", "bf16-true", "16-true", "64-true")
"""Precisions in which modules and batches have the dtype already."""


class LightningTallyCallback(MonitoredTraining, Callback):
    """See the module's text. Options are those of `torchtally.monitor`; with `numbers_every` steps
    between them, gradients and updates that are lost are counted: `torchtally.NumbersWatch`.

    The prediction is that of a trace or a summary, or else of the first batch's `training_step`
    and the module's optimizer.
    """

    _step = 0
    _is_predicted = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to measure."""

        def log(values: dict[str, Any], step: int) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(values, step=step)

        self._step, self._is_predicted = trainer.global_step, self._prediction is not None
        self._monitor = monitor(
            self._prediction,
            gpu=self._gpu,
            tolerance=self._tolerance,
            log=log,
            every=trainer.log_every_n_steps or sys.maxsize,
            device=pl_module.device,
        )
        for optimizer in trainer.optimizers[:1]:
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            self._watch_numbers(pl_module, optimizer, scaler, log)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Predict the first batch, where nothing else was given."""
        if self._monitor is not None and not self._is_predicted:
            self._is_predicted = True
            self._monitor.predict_batch(pl_module, lambda: first_request(trainer, pl_module, batch))

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch is not always a step: gradients may be accumulated."""
        if self._monitor is not None and trainer.global_step != self._step:
            self._step = trainer.global_step
            self._monitor.step(self._step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The training has failed: its prediction is not waited for."""
        if self._monitor is not None:
            self._monitor.cancel()
            self._monitor = None


class CalledTrainingStep(nn.Module):
    """A module whose call is the LightningModule's `training_step`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: Any) -> Tensor:
        step: Any = self.module.training_step
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `self.log` has no Trainer to log to
            loss: Tensor = step(*(batch, 0)[: len(signature(step).parameters)])
        return loss


def first_request(trainer: Any, module: Any, batch: Any) -> StepRequest:
    """The batch, as the Trainer steps on it. Raises UsageError for what cannot be predicted."""
    if not module.automatic_optimization:
        raise UsageError("the module optimizes by itself. Give a trace of the script instead.")
    if len(trainer.optimizers) != 1:
        raise UsageError(f"expected one optimizer, got {len(trainer.optimizers)}. Give a trace.")
    if trainer.precision not in (*AUTOCAST, *WHOLE):
        raise UsageError(f"precision {trainer.precision!r}: give a trace of the script instead.")
    return step_request(
        CalledTrainingStep(module),
        Inputs((batch,), {}),
        AUTOCAST.get(trainer.precision),
        trainer.optimizers[0],
        trainer.accumulate_grad_batches,
    )

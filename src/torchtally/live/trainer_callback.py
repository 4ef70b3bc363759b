"""Predicted and measured steps in the logs of the Trainer of transformers.

    trainer = Trainer(model, arguments, train_dataset=rows)
    torchtally.TallyCallback().attach(trainer)
    trainer.train()

Every log of the Trainer then has both, and so have the trackers that it reports to: TensorBoard,
wandb, trackio and all others.
"""

from collections.abc import MutableMapping
from typing import Any

from torchtally.errors import UsageError
from torchtally.live.monitor import MonitoredTraining, monitor, say

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise UsageError(
        "torchtally.TallyCallback is for the Trainer of transformers: pip install transformers."
    ) from error


class TallyCallback(MonitoredTraining, TrainerCallback):  # type: ignore[misc]
    """See the module's text. Options are those of `torchtally.monitor`; with `numbers_every` steps
    between them, gradients and updates that are lost are counted: `torchtally.NumbersWatch`.

    The prediction is that of a trace or a summary, or else of the Trainer's own model, optimizer
    and first batch. In `callbacks=[...]` it stands behind the Trainer's trackers, which then log
    before it has added anything: `attach` puts it before them.
    """

    _is_first = False

    def attach(self, trainer: Any) -> "TallyCallback":
        """Callback, put before all others of this Trainer."""
        self._is_first = True
        callbacks = trainer.callback_handler.callbacks
        callbacks[:] = [self, *(callback for callback in callbacks if callback is not self)]
        return self

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any = None, optimizer: Any = None,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        """Predict the first batch, where nothing else was given."""
        if args.report_to and not self._is_first:
            say(
                f"{', '.join(args.report_to)}: called before this callback has added its "
                "figures. torchtally.TallyCallback(...).attach(trainer) puts it first."
            )
        self._monitor = monitor(
            model if self._prediction is None else self._prediction,
            optimizer,
            gpu=self._gpu,
            tolerance=self._tolerance,
            micro_batches=args.gradient_accumulation_steps,
        )
        # accelerate's optimizer steps the one in it, and has the scaler (accelerate/optimizer.py).
        inner = getattr(optimizer, "optimizer", optimizer)
        self._watch_numbers(model, inner, getattr(optimizer, "scaler", None))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._monitor is not None:
            self._monitor.step(state.global_step)

    def on_log(
        self, args: Any, state: Any, control: Any, *,
        logs: MutableMapping[str, Any] | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Add the steps since the last log to this one, and to the Trainer's history."""
        if self._monitor is None or logs is None or "loss" not in logs:
            return
        values = self._monitor.values()
        if self._watch is not None:
            values |= self._watch.values()
        logs.update(values)
        if state.log_history:
            state.log_history[-1].update(values)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end()

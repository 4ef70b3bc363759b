"""Durable checkpoints for Lightning's Trainer, in place of its own.

    callback = torchtally.LightningDurableCallback("out", every=100)
    trainer = Trainer(enable_checkpointing=False, callbacks=[callback], ...)
    trainer.fit(module, loader)

Started again, `fit` continues with the batch after the newest checkpoint: weights, optimizers,
schedulers, the loss scaler, the trainer's loops and callbacks, random states and the place in the
data. A checkpoint is made when the next batch begins: a validation due before it has run by then.

The place in the data: the epoch begins with the random states that it began with, and its batches
up to there are fetched again, unless the loader has a state_dict of its own.

Known limits: means over an epoch (`self.log(..., on_epoch=True)`) are of the batches after
resuming, as with Lightning's checkpoints; hooks that draw random numbers while an epoch begins
change its order.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtally.checkpoints.durable import Durable, durable
from torchtally.checkpoints.randomness import random_states, set_random_states
from torchtally.errors import UsageError
from torchtally.torch_private.lightning import (
    callback_base,
    data_of,
    is_accumulating,
    leave_signals,
)

if TYPE_CHECKING:
    Callback = object
else:
    Callback = callback_base("LightningDurableCallback")

NAME = "trainer"


class LightningDurableCallback(Callback):
    """See the module's text. Options are those of `torchtally.durable`; one process alone."""

    def __init__(self, folder: Path | str, **options: Any) -> None:
        self._folder, self._options = Path(folder), options
        self._closing = ExitStack()
        self._run: Durable
        self._has_begun = False

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Lock the folder, and load its newest checkpoint: the optimizers are there by now."""
        if trainer.world_size > 1:
            raise UsageError("LightningDurableCallback supports one process only.")
        if trainer.ckpt_path is not None:
            raise UsageError(
                f"fit(ckpt_path=...): the checkpoints in {self._folder} continue by themselves. "
                "Leave ckpt_path out."
            )
        self._has_begun, self._progress = False, _Progress(trainer)
        schedulers = (config.scheduler for config in trainer.lr_scheduler_configs)
        objects = {
            NAME: self._progress,
            **{f"optimizer_{n}": optimizer for n, optimizer in enumerate(trainer.optimizers)},
            **{f"scheduler_{n}": scheduler for n, scheduler in enumerate(schedulers)},
        }
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._run = self._closing.enter_context(
            durable(self._folder, model=pl_module, scaler=scaler, objects=objects, **self._options)
        )
        set_random_states(self._progress.epoch_random)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Find the place in the data; signals are the run's."""
        # Lightning has handlers of its own around those of the run, which end without saving; and
        # after an exception it would put back the run's (signal_connector.py).
        leave_signals(trainer)
        self._progress.find()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Remember the random states that the order of the epoch follows from."""
        if trainer.current_epoch:  # that of the first was drawn before
            self._progress.epoch_random = random_states()

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save the step before if it is due; SystemExit after a signal."""
        if not self._has_begun:
            self._run.begin()
            self._has_begun = True
        elif trainer.global_step != self._run.step:  # else gradients are being accumulated
            self._run.done(trainer.global_step)

    def on_train_batch_end(self, *args: Any) -> None:
        """Remember the random states that the next batch is fetched with."""
        self._progress.fetch_random = random_states()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """The same: validation may have drawn."""
        self._progress.fetch_random = random_states()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the last step."""
        if self._has_begun:
            self._run.done(trainer.global_step, is_last=True)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Unlock the folder."""
        leave_signals(trainer)
        self._closing.close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Unlock the folder."""
        self._closing.close()


class _Progress:
    """Position of the Trainer: its loops, its callbacks, and the random states around its data."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.epoch_random = self.fetch_random = random_states()
        self._batches = 0
        """Of this epoch, to be fetched again."""

    def state_dict(self) -> dict[str, Any]:
        loop = self._trainer.fit_loop
        loops = loop.state_dict()
        total = loop.epoch_loop.batch_progress.total
        if total.ready > total.started and not is_accumulating(self._trainer):
            # A restart counts the batch that has begun as one that stepped
            # (training_epoch_loop.py, reset); only loggers see that number.
            loops["epoch_loop.state_dict"]["_batches_that_stepped"] -= 1
        callbacks = {one.state_key: one.state_dict() for one in self._trainer.callbacks}
        return {
            "loops": loops,
            "callbacks": callbacks,
            "metrics": dict(self._trainer.callback_metrics),
            "epoch_random": self.epoch_random,
            "fetch_random": self.fetch_random,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch_random, self.fetch_random = state["epoch_random"], state["fetch_random"]
        self._trainer.fit_loop.load_state_dict(state["loops"])
        has_own_state = "combined_loader" in state["loops"]["state_dict"]
        progress = state["loops"]["epoch_loop.batch_progress"]
        self._batches = 0 if has_own_state else progress["current"]["completed"]
        self._trainer.callback_metrics.update(state["metrics"])
        for callback in self._trainer.callbacks:
            if saved := state["callbacks"].get(callback.state_key):
                callback.load_state_dict(saved)

    def find(self) -> None:
        """Fetch the batches of this epoch that are done, where the next one is fetched."""
        loop = self._trainer.fit_loop
        if not loop.is_resuming:
            return
        total = loop.epoch_loop.batch_progress.total
        total.ready = total.started  # a restart does so for the epoch's numbers alone
        fetcher, loaders = data_of(self._trainer)
        for loader in loaders:
            if callable(set_epoch := getattr(getattr(loader, "sampler", None), "set_epoch", None)):
                set_epoch(loop.epoch_progress.current.processed)
        for _ in range(self._batches):
            next(fetcher)
        warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended before")
        fetcher.fetched -= self._batches  # the loop adds them
        # Until the next batch the loop may draw, as it does for a validation that it leaves out.
        now = self.fetch_random if self._batches else random_states()
        fetcher.iterator = _with_states(now, fetcher.iterator)


def _with_states(states: Any, iterator: Iterator[Any]) -> Iterator[Any]:
    set_random_states(states)
    with suppress(StopIteration):
        while True:  # `yield from` would call iter, which begins anew
            yield next(iterator)

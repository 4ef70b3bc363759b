"""Saving in the background: a copy is taken between two steps, and a thread writes it."""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import Tensor

from torchtally.checkpoints.config import CheckpointConfig
from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.manifest import FORMAT_VERSION, Manifest
from torchtally.checkpoints.objects import Objects
from torchtally.checkpoints.plain import versions
from torchtally.checkpoints.shards import global_norm
from torchtally.checkpoints.signals import Signals
from torchtally.checkpoints.snapshot import Snapshot
from torchtally.checkpoints.storage import write
from torchtally.errors import CheckpointError, SaveError, TallyError

LOWEST_PRIORITY = 19
"""nice(2): the writer gets the CPU time that training leaves."""


class Saver:
    """Saves the state of a training, one checkpoint at a time.

    Background failures are raised by the next `save` or `wait`, on every rank.
    """

    def __init__(
        self,
        contents: Objects,
        checkpoints: Checkpoints,
        config: CheckpointConfig,
        *,
        saved_step: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._contents, self._checkpoints, self._config = contents, checkpoints, config
        self._snapshot = Snapshot()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._clock = clock
        self._saved_s = clock()
        self.saved_step = saved_step
        """Of the newest checkpoint, whole or being written."""

    def is_due(self, step: int) -> bool:
        """Whether a save is due by this process's clock; with several ranks the first one due
        decides for all.
        """
        every, minutes = self._config.every, self._config.every_minutes
        return (every is not None and step % every == 0) or (
            minutes is not None and self._clock() - self._saved_s >= 60 * minutes
        )

    def requests(self, step: int, signals: Signals) -> tuple[int, bool]:
        """(the signal to stop for, whether to save now): the same on all ranks.

        Raises the error of a failed save.
        """
        stop, saves, fails = self._contents.ranks.max(
            signals.stop, signals.take_save_request() or self.is_due(step), self._error is not None
        )
        if fails:
            self.wait()
        return stop, bool(saves)

    def save(self, step: int, best_step: int | None = None) -> None:
        """Save the present state; the checkpoint of the best step is kept.

        Waits for the previous save, then returns once the copy is taken (without
        `in_background`, once it is written). Raises SaveError for NaN or inf weights, which
        would push out the last good checkpoint.
        """
        self.wait()
        if step == self.saved_step:
            return
        self._check_finite(step)
        tensors = self._contents.tensors()
        self._snapshot.take(tensors)
        manifest = Manifest(
            format_version=FORMAT_VERSION, step=step, ranks=self._contents.ranks.size,
            versions=versions(), unix_s=0.0, files={}, tensors={}, **self._contents.manifest_data(),
        )  # fmt: skip
        self.saved_step, self._saved_s = step, self._clock()

        def run() -> None:
            try:
                self._write(tensors, manifest, best_step)
            except CheckpointError as error:
                self._error = SaveError(str(error))
                self._error.__cause__ = error
            except BaseException as error:
                self._error = error

        if not self._config.in_background:
            run()
            self.wait()
            return
        self._thread = threading.Thread(
            target=_at_lowest_priority, args=(run,), name="tally-checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait for the write in progress. Raises its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            self.saved_step = None
            raise error

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, kind: object, error: BaseException | None, place: object) -> None:
        """Finish the write in progress, even after another error."""
        if error is None:
            self.wait()
            return
        try:
            self.wait()
        except (TallyError, OSError) as failure:
            error.add_note(f"The checkpoint being written failed as well: {failure}")

    def _write(
        self, tensors: Mapping[str, Tensor], described: Manifest, best_step: int | None
    ) -> None:
        ranks = self._contents.ranks
        saving = replace(ranks, group=ranks.saving_group)
        write(tensors, self._snapshot.copies(), self._checkpoints, described, saving)
        if ranks.is_first:
            config = self._config
            self._checkpoints.prune(config.keep_last, config.keep_every, best_step)

    def _check_finite(self, step: int) -> None:
        norm = global_norm(parameter.detach() for parameter in self._contents.parameters())
        if not bool(norm.isfinite()):
            raise SaveError(
                f"Step {step}: weights are NaN or inf, so they are not saved. The last checkpoint "
                "is whole: resume from it with a lower learning rate."
            )


def _at_lowest_priority(run: Callable[[], None]) -> None:
    """Run at the lowest priority, which Linux has per thread."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
    run()

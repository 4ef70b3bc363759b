"""Checkpoints for a training loop of one's own: kills, signals, full disks and damaged files are
survived as by `tally train`, and a resumed run equals one that was never interrupted, bit for bit.

    with torchtally.durable("out", model=model, optimizer=optimizer) as run:
        for step in run.steps(1000):
            ...                                  # the loop's own code, unchanged

Started again, the same script continues after the newest whole checkpoint. Saved are the states of
the objects given, the random states of Python, NumPy, torch and the GPUs, and what the script puts
into `run`, a dict of its own:

    batch = run.get("batch") or next_batch()     # drawn ahead before the last checkpoint
    run["best_loss"] = min(loss, run.get("best_loss", inf))

Under torchrun every rank makes the same calls. The model and the optimizer are saved once, or
shard by shard (FSDP2); all else, and `run`, is each rank's own.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from torchtally.checkpoints.config import CheckpointConfig
from torchtally.checkpoints.folder import Checkpoints, name_of
from torchtally.checkpoints.manifest import Manifest
from torchtally.checkpoints.newest import newest_whole, say_changes
from torchtally.checkpoints.objects import VALUES, Objects, check_object
from torchtally.checkpoints.packing import pack
from torchtally.checkpoints.randomness import set_random_states
from torchtally.checkpoints.ranks import ALONE, Ranks
from torchtally.checkpoints.saver import Saver
from torchtally.checkpoints.signals import EXIT_CODE, Signals, listen
from torchtally.errors import CheckpointError
from torchtally.table import Cell, Column, Table, Tabular
from torchtally.units import Unit


def durable(
    folder: Path | str,
    *,
    model: nn.Module,
    optimizer: Optimizer | None = None,
    scheduler: Any = None,
    scaler: Any = None,
    data: Any = None,
    objects: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    allow_changes: bool = False,
    every: int | None = None,
    every_minutes: float | None = 10.0,
    keep_last: int = 2,
    keep_every: int | None = None,
    in_background: bool = True,
) -> "Durable":
    """A run in this folder, for a `with` block; see the module's text.

    `scheduler`, `scaler`, `data` (what gives batches) and all in `objects` have `state_dict` and
    `load_state_dict`, or are random generators of torch, NumPy or Python. A `config` that differs
    from the saved one is refused, and so are hyperparameters of the optimizer, unless changes are
    allowed: then the script's apply. `every` counts steps; see `CheckpointConfig`.
    """
    named = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler,
             "data": data, **(objects or {})}  # fmt: skip
    when = CheckpointConfig(
        every=every,
        every_minutes=every_minutes,
        keep_last=keep_last,
        keep_every=keep_every,
        in_background=in_background,
    )
    given = {name: value for name, value in named.items() if value is not None}
    return Durable(Path(folder), given, dict(config or {}), when, allow_changes=allow_changes)


COLUMNS = (
    Column("checkpoint", "checkpoint", Unit.TEXT),
    Column("step", "step", Unit.STEPS),
    Column("bytes", "size", Unit.BYTES),
    Column("tensors", "tensors", Unit.COUNT),
    Column("ranks", "ranks", Unit.COUNT),
    Column("saved", "saved (UTC)", Unit.TEXT),
    Column("problem", "problem", Unit.TEXT),
)
"""Of a run's checkpoints."""


class Durable(Tabular, MutableMapping[str, Any]):
    """A run: its steps, and a dict of the script's own values that is saved with it."""

    def __init__(
        self,
        folder: Path,
        objects: Mapping[str, Any],
        config: Mapping[str, Any],
        when: CheckpointConfig,
        *,
        allow_changes: bool = False,
    ) -> None:
        for name, value in objects.items():
            check_object(name, value)
        self.step = 0
        """Steps done."""
        self._checkpoints = Checkpoints(folder)
        self._objects, self._config, self._when = dict(objects), config, when
        self._allow_changes = allow_changes
        self._values: dict[str, Any] = {}
        self._random: dict[str, Any] = {}
        self._closing = ExitStack()

    def __enter__(self) -> "Durable":
        """Lock the folder, and load the newest whole checkpoint."""
        with ExitStack() as stack:
            ranks = _ranks()
            self._contents = Objects(self._objects, self._values, self._config, ranks)
            stack.enter_context(self._checkpoints.lock() if ranks.is_first else nullcontext())
            is_main = threading.current_thread() is threading.main_thread()
            self._signals = (
                stack.enter_context(listen(say)) if is_main else Signals(say, is_training=True)
            )
            manifest = newest_whole(self._checkpoints, ranks, self._say)
            if manifest is not None:
                self._resume(manifest)
            ranks.run_on_first(self._checkpoints.clean, "remove unfinished checkpoints")
            saved_step = None if manifest is None else manifest.step
            self._saver = stack.enter_context(
                Saver(self._contents, self._checkpoints, self._when, saved_step=saved_step)
            )
            self._closing = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        """Finish the checkpoint being written, and unlock the folder."""
        self._closing.__exit__(*error)

    def steps(self, end: int) -> Iterator[int]:
        """The steps from the first that is not done to `end` - 1; a checkpoint after the last.

        A step is done when the next one is asked for: `break` leaves it undone. After SIGTERM,
        SIGINT or SIGHUP the step is finished and saved, and SystemExit raised with 128 plus the
        signal's number.
        """
        self.begin()
        try:
            for step in range(self.step, end):
                yield step
                self.done(step + 1, is_last=step + 1 == end)
        finally:
            self._signals.is_training = False  # the next signal ends the process at once
        if self._signals.stop:  # heard after the last step was saved
            raise SystemExit(EXIT_CODE + self._signals.stop)

    def begin(self) -> None:
        """Restores the random states of the checkpoint, before the first step.

        What the script drew before, as for a batch that is replaced, is undone.
        """
        set_random_states(self._random)
        self._signals.is_training = True

    def done(self, step: int, *, is_last: bool = False) -> None:
        """So many steps are done: save if it is due, after the last step in any case.

        For loops that do not call `steps`; raises SystemExit as that does.
        """
        self.step = step
        stop, is_asked = self._saver.requests(step, self._signals)
        if stop or is_asked or is_last:
            self._saver.save(step)
        if stop:
            self._saver.wait()
            self._contents.ranks.wait()
            raise SystemExit(EXIT_CODE + stop)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __setitem__(self, key: str, value: Any) -> None:
        pack(value, f"{VALUES}/{key}", {})  # now, where the mistake is
        self._values[key] = value

    def __delitem__(self, key: str) -> None:
        del self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<durable run in {self._checkpoints.path.parent}, {self.step} steps done>"

    def table(self) -> Table:
        """The run's checkpoints, newest first, by their manifests: their tensors are not read."""
        rows = tuple(map(self._row, self._checkpoints.steps()))
        folder = str(self._checkpoints.path.parent)
        return Table(f"Durable run in {folder}, {self.step} steps done", COLUMNS, rows)

    def _row(self, step: int) -> tuple[Cell, ...]:
        try:
            manifest = self._checkpoints.manifest(step)
        except CheckpointError as error:
            return name_of(step), step, None, None, None, "", str(error)
        size_bytes = sum(file.size_bytes for file in manifest.files.values())
        saved = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(manifest.unix_s))
        counts = len(manifest.tensors), manifest.ranks
        return name_of(step), step, size_bytes, *counts, saved, ""

    def _say(self, text: str) -> None:
        if self._contents.ranks.is_first:
            say(text)

    def _resume(self, manifest: Manifest) -> None:
        changes = self._contents.changes(manifest)
        remedy = (
            ""
            if self._allow_changes
            else ("Undo the change, pass allow_changes=True, or give this run another folder.")
        )
        say_changes(manifest, changes, self._say, remedy)
        self._random = self._contents.restore(self._checkpoints, manifest, self._say)
        self.step = manifest.step
        self._say(f"resuming from step {manifest.step}")


def _ranks() -> Ranks:
    """The ranks of the script's own process group."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return ALONE
    group, saving_group = (dist.new_group(backend="gloo") for _ in range(2))
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    return Ranks(dist.get_rank(), dist.get_world_size(), local_rank, group, saving_group)


def say(text: str) -> None:
    print(f"torchtally: {text}", file=sys.stderr, flush=True)

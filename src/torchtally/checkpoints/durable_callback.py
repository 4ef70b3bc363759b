"""Durable checkpoints for the Trainer of transformers, in place of its own.

    callback = torchtally.DurableCallback("out", every=100)
    trainer = Trainer(model, TrainingArguments(save_strategy="no", ...), callbacks=[callback], ...)
    trainer.train(resume_from_checkpoint=callback.checkpoint())

The Trainer itself finds its place in the data, from the step of `trainer_state.json`; weights,
optimizer, learning rates and random states are the durable checkpoint's.

A checkpoint is made when the next step begins: the Trainer has logged the step by then, and fetched
the next batch, so that random states are restored where they were saved.

Known limit: random numbers of a DataLoader's worker processes differ after resuming, as with the
Trainer's own checkpoints.
"""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist

from torchtally.checkpoints.durable import Durable, durable, say
from torchtally.checkpoints.folder import Checkpoints, name_of
from torchtally.checkpoints.manifest import explain_damaged_state
from torchtally.checkpoints.newest import newest_whole
from torchtally.checkpoints.packing import unpack
from torchtally.checkpoints.ranks import ALONE
from torchtally.errors import UsageError

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise UsageError(
        "torchtally.DurableCallback is for the Trainer of transformers: pip install transformers."
    ) from error

STATE = "trainer_state.json"
WEIGHTS = "model.safetensors"
NAME = "trainer"


class DurableCallback(TrainerCallback):  # type: ignore[misc]
    """See the module's text. Options are those of `torchtally.durable`.

    One process alone; raises UsageError under torchrun, and with fp16, whose loss scaler callbacks
    are not given.
    """

    def __init__(self, folder: Path | str, **options: Any) -> None:
        self._folder, self._options = Path(folder), options
        self._closing = ExitStack()
        self._run: Durable
        self._has_begun = False

    def checkpoint(self) -> str | None:
        """A folder for `resume_from_checkpoint`; None before the first checkpoint."""
        checkpoints = Checkpoints(self._folder)
        with checkpoints.lock():
            manifest = newest_whole(checkpoints, ALONE, say)
            if manifest is None:
                return None
            with explain_damaged_state(manifest):
                text: str = unpack(manifest.state["ranks"][0][NAME], {})["json"]
            place = self._folder / "resume"
            place.mkdir(exist_ok=True)
            (place / STATE).write_text(text, encoding="utf-8")
            weights = place / WEIGHTS
            weights.unlink(missing_ok=True)
            weights.symlink_to(Path("..", checkpoints.path.name, name_of(manifest.step), WEIGHTS))
            return str(place)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any = None, optimizer: Any = None,
        lr_scheduler: Any = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        """Lock the folder, and load the checkpoint that the Trainer resumes from."""
        if args.fp16:
            raise UsageError("fp16: callbacks are not given its loss scaler. Use bf16=True.")
        if dist.is_initialized() and dist.get_world_size() > 1:
            raise UsageError(
                "DurableCallback supports one process only. Use the Trainer's checkpoints."
            )
        self._run = self._closing.enter_context(durable(
            self._folder, model=model, optimizer=optimizer, scheduler=lr_scheduler,
            objects={NAME: _TrainerState(state)}, **self._options,
        ))  # fmt: skip
        if self._run.step != state.global_step:
            there, here = self._run.step, state.global_step
            self._closing.close()
            raise UsageError(
                f"{self._folder}: the newest checkpoint is of step {there}, but the Trainer starts "
                f"from step {here}. trainer.train(resume_from_checkpoint=callback.checkpoint()) "
                "continues it."
            )
        self._has_begun = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the step before if it is due; SystemExit after a signal."""
        if self._has_begun:
            self._done(state.global_step)
        else:
            self._run.begin()
            self._has_begun = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the last step, and unlock the folder."""
        if self._has_begun:
            self._done(state.global_step, is_last=True)
        self._closing.close()

    def _done(self, step: int, *, is_last: bool = False) -> None:
        try:
            self._run.done(step, is_last=is_last)
        except BaseException:
            self._closing.close()
            raise


class _TrainerState:
    """The Trainer's own record of its run, as JSON; the Trainer itself reads it back."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def state_dict(self) -> dict[str, str]:
        return {"json": json.dumps(asdict(self._state), sort_keys=True)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """It is read before the run is opened, by the Trainer."""

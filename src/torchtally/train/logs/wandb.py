"""Weights & Biases, configured by its own variables: WANDB_MODE, WANDB_BASE_URL and so on."""

import secrets
from collections.abc import Mapping
from pathlib import Path

from torchtally.train.logs.log import LogName, LogValue, RunHeader
from torchtally.train.logs.names import STEP
from torchtally.train.logs.remote import explain_start_errors, import_package, run_of


class Wandb:
    """A run in wandb. The x axis is train/global_step, as Hugging Face's Trainer sets it.

    wandb's own step is not used: it drops records of steps below the last one, which a resumed run
    logs first.
    """

    def __init__(
        self, folder: Path, header: RunHeader, *, project: str, is_resumed: bool = False
    ) -> None:
        """Raises UsageError without the `wandb` extra, or if wandb does not start."""
        module = import_package(LogName.WANDB)
        with explain_start_errors(
            LogName.WANDB, "Log in with `wandb login`, or set WANDB_MODE=offline."
        ):
            self._run = module.init(
                project=project,
                name=folder.resolve().name,
                id=run_of(
                    folder, LogName.WANDB, is_resumed=is_resumed, make=lambda: secrets.token_hex(8)
                ),
                resume="allow",
                dir=str(folder),
                config=header.as_json(),
            )
            self._run.define_metric(STEP)
            self._run.define_metric("*", step_metric=STEP, step_sync=True)

    def write(self, step: int, values: Mapping[str, LogValue]) -> None:
        self._run.log({**values, STEP: step})

    def close(self) -> None:
        self._run.finish()

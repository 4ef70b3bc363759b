"""Weights & Biases and Trackio, which have one interface. Each is configured by its own variables.

wandb: WANDB_MODE, WANDB_BASE_URL and so on. Trackio: a database on this machine unless
TRACKIO_SPACE_ID names a Space.
"""

import secrets
from collections.abc import Mapping
from pathlib import Path

from torchtally.train.logs.log import LogName, LogValue, RunHeader
from torchtally.train.logs.names import STEP
from torchtally.train.logs.remote import explain_start_errors, import_package, run_of

ADVICE: Mapping[LogName, str] = {
    LogName.WANDB: "Log in with `wandb login`, or set WANDB_MODE=offline.",
    LogName.TRACKIO: "Check TRACKIO_SPACE_ID and TRACKIO_DIR.",
}


class Hosted:
    """A run of such a service.

    wandb identifies it by an id, Trackio by its name, which gets a random suffix: folders may share
    names. wandb's x axis is train/global_step, as Hugging Face's Trainer sets it, and not its own
    step: it drops records of steps below the last one, which a resumed run logs first.
    """

    def __init__(
        self,
        service: LogName,
        folder: Path,
        header: RunHeader,
        *,
        project: str,
        is_resumed: bool = False,
    ) -> None:
        """Raises UsageError without the service's extra, or if it does not start."""
        module, name = import_package(service), folder.resolve().name
        self._is_wandb = service is LogName.WANDB
        random = secrets.token_hex(8) if self._is_wandb else f"{name}-{secrets.token_hex(3)}"
        with explain_start_errors(service, ADVICE[service]):
            known_as = run_of(folder, service, is_resumed=is_resumed, first=random)
            self._run = module.init(
                project=project,
                resume="allow",
                config=header.as_json(),
                **({"name": name, "id": known_as, "dir": str(folder)} if self._is_wandb
                   else {"name": known_as}),
            )  # fmt: skip
            if self._is_wandb:
                self._run.define_metric(STEP)
                self._run.define_metric("*", step_metric=STEP, step_sync=True)

    def write(self, step: int, values: Mapping[str, LogValue]) -> None:
        self._run.log({**values, STEP: step}, **({} if self._is_wandb else {"step": step}))

    def close(self) -> None:
        self._run.finish()

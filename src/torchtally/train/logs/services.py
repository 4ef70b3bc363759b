"""TensorBoard's event files, Weights & Biases and Trackio. Each is configured by its own variables.

wandb: WANDB_MODE, WANDB_BASE_URL and so on. Trackio: a database on this machine unless
TRACKIO_SPACE_ID names a Space.
"""

import json
import os
import secrets
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from torchtally.errors import UsageError, needed_package
from torchtally.train.logs.log import LogValue, RunHeader
from torchtally.train.logs.names import STEP

TENSORBOARD, WANDB = "tensorboard", "wandb"
ADVICE: Mapping[str, str] = {
    TENSORBOARD: "Check the folder.",
    WANDB: "Log in with `wandb login`, or set WANDB_MODE=offline.",
    "trackio": "Check TRACKIO_SPACE_ID and TRACKIO_DIR.",
}
"""Where one does not start, by name."""
FLUSH_S = 30
"""How long TensorBoard's writer thread buffers events."""


def open_service(
    name: str, folder: Path, header: RunHeader, project: str, resumed_at: int | None
) -> "TensorBoard | Hosted":
    """The log of this name. Raises UsageError if its package is missing, or it does not start."""
    module = needed_package(name, "log.to", name, f", or remove {name} from log.to")
    try:
        with redirect_stdout(sys.stderr):
            if name == TENSORBOARD:
                from torch.utils import tensorboard

                return TensorBoard(tensorboard, folder, header, resumed_at)
            return Hosted(module, name, folder, header, project, is_resumed=resumed_at is not None)
    except Exception as error:  # each package has its own errors
        text = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}".rstrip(": ")
        raise UsageError(f"log.to: {name} did not start ({text}). {ADVICE[name]}") from error


class TensorBoard:
    """FOLDER/tensorboard: numbers become scalars, strings texts, and the header a JSON text.

    Resuming hides the records of the step and later ones (`purge_step`).
    """

    def __init__(
        self, module: Any, folder: Path, header: RunHeader, resumed_at: int | None
    ) -> None:
        self._writer = module.SummaryWriter(
            str(folder / TENSORBOARD), purge_step=resumed_at, flush_secs=FLUSH_S
        )
        text = json.dumps(header.as_json(), indent=2)
        self._writer.add_text("run", f"```json\n{text}\n```", resumed_at or 0)

    def write(self, step: int, values: Mapping[str, LogValue]) -> None:
        for name, value in values.items():
            if isinstance(value, str):
                self._writer.add_text(name, value, step)
            else:
                self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class Hosted:
    """A run of wandb or Trackio, which have one interface.

    wandb identifies it by an id, Trackio by its name, which gets a random suffix: folders may share
    names. wandb's x axis is train/global_step, as Hugging Face's Trainer sets it, and not its own
    step: it drops records of steps below the last one, which a resumed run logs first.
    """

    def __init__(
        self, module: Any, service: str, folder: Path, header: RunHeader, project: str, *,
        is_resumed: bool,
    ) -> None:  # fmt: skip
        self._is_wandb, name = service == WANDB, folder.resolve().name
        random = secrets.token_hex(8) if self._is_wandb else f"{name}-{secrets.token_hex(3)}"
        known_as = _run_of(folder / f"{service}.run", random, is_resumed=is_resumed)
        self._run = module.init(
            project=project, resume="allow", config=header.as_json(),
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


def _run_of(path: Path, first: str, *, is_resumed: bool) -> str:
    """The service's name of the run: `first`, kept in a file for resuming.

    A resumed run without one gets a new name.
    """
    if is_resumed and path.is_file():
        return path.read_text("utf-8").strip()
    written = path.with_name(f".{path.name}.{os.getpid()}")
    written.write_text(f"{first}\n", "utf-8")
    written.replace(path)
    return first

"""TensorBoard's event files in FOLDER/tensorboard."""

import json
from collections.abc import Mapping
from pathlib import Path

from torchtally.train.logs.log import LogName, LogValue, RunHeader
from torchtally.train.logs.remote import explain_start_errors, import_package

FLUSH_S = 30
"""How long TensorBoard's writer thread buffers events."""


class TensorBoard:
    """Numbers become scalars, strings texts, and the header a JSON text.

    Resuming hides the records of the step and later ones (`purge_step`).
    """

    def __init__(self, folder: Path, header: RunHeader, *, resumed_at: int | None = None) -> None:
        """Raises UsageError without the `tensorboard` extra, or if the files cannot be written."""
        import_package(LogName.TENSORBOARD)
        module = import_package(LogName.TENSORBOARD, "torch.utils.tensorboard")
        with explain_start_errors(LogName.TENSORBOARD, "Check the folder."):
            self._writer = module.SummaryWriter(
                str(folder / LogName.TENSORBOARD), purge_step=resumed_at, flush_secs=FLUSH_S
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

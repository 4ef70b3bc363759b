"""Trackio: a database on this machine unless TRACKIO_SPACE_ID names a Space."""

import secrets
from collections.abc import Mapping
from pathlib import Path

from torchtally.train.logs.log import LogName, LogValue, RunHeader
from torchtally.train.logs.names import STEP
from torchtally.train.logs.remote import explain_start_errors, import_package, run_of


class Trackio:
    """A run in trackio, identified by its name, which gets a random suffix: folders may share
    names.
    """

    def __init__(
        self, folder: Path, header: RunHeader, *, project: str, is_resumed: bool = False
    ) -> None:
        """Raises UsageError without the `trackio` extra, or if trackio does not start."""
        module = import_package(LogName.TRACKIO)
        name = folder.resolve().name
        with explain_start_errors(LogName.TRACKIO, "Check TRACKIO_SPACE_ID and TRACKIO_DIR."):
            self._run = module.init(
                project=project,
                name=run_of(
                    folder,
                    LogName.TRACKIO,
                    is_resumed=is_resumed,
                    make=lambda: f"{name}-{secrets.token_hex(3)}",
                ),
                resume="allow",
                config=header.as_json(),
            )

    def write(self, step: int, values: Mapping[str, LogValue]) -> None:
        self._run.log({**values, STEP: step}, step=step)

    def close(self) -> None:
        self._run.finish()

"""Folder of what ends with a run: in the system's directory for temporary files.

A run that was killed leaves its folder; the next one removes it.
"""

import os
import secrets
import shutil
import tempfile

from torchtally.isolation.journal import TOKEN_BYTES, Journal, remove_left
from torchtally.isolation.natives import OS

PREFIX = "tally-run-"
VARIABLE = "TMPDIR"


class TemporaryFolder:
    """An empty folder of one run, locked for as long as this process lives."""

    def __init__(self, directory: str | None = None) -> None:
        """Makes a folder in the system's directory, or in one of tally's."""
        if directory is None:
            directory = tempfile.gettempdir()
            remove_left(directory, PREFIX)
        self.path = os.path.realpath(
            os.path.join(directory, PREFIX + secrets.token_hex(TOKEN_BYTES))
        )
        OS.mkdir(self.path, 0o700)
        self._journal = Journal(self.path)
        self._before: tuple[str | None, str | None] | None = None

    def take(self) -> str:
        """Have `tempfile` and what asks the environment use it, here and in programs."""
        self._before = tempfile.tempdir, os.environ.get(VARIABLE)
        tempfile.tempdir = os.environ[VARIABLE] = self.inner("tmp")
        return tempfile.tempdir

    def _give_back(self) -> None:
        if self._before is not None:
            tempfile.tempdir, variable = self._before
            self._before = None
            if variable is None:
                os.environ.pop(VARIABLE, None)
            else:
                os.environ[VARIABLE] = variable

    def inner(self, name: str) -> str:
        """The path of an empty folder in it."""
        path = os.path.join(self.path, name)
        if not os.path.isdir(path):
            OS.mkdir(path, 0o700)
        return path

    def remove(self) -> None:
        """What another thread of the script still writes there may stay, for the next run."""
        self._give_back()
        shutil.rmtree(self.path, ignore_errors=True)

    def close(self) -> None:
        self._journal.close()

"""Where a run keeps what ends with it: a folder in the system's directory for temporary files.

A run that was killed leaves its folder; the next one removes it.
"""

import os
import secrets
import shutil
import tempfile
import time
from contextlib import suppress

from torchtally.isolation.journal import JOURNAL, Journal, is_cleared
from torchtally.isolation.natives import OS

PREFIX = "tally-run-"
VARIABLE = "TMPDIR"
NEW_S = 60.0
"""How long a folder may be empty: its run is about to mark it."""


class TemporaryFolder:
    """An empty folder of one run, locked for as long as this process lives."""

    def __init__(self, directory: str | None = None) -> None:
        """In the system's directory, or in one of tally's."""
        if directory is None:
            directory = tempfile.gettempdir()
            remove_left(directory, PREFIX)
        self.path = os.path.realpath(os.path.join(directory, PREFIX + secrets.token_hex(4)))
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


def remove_left(directory: str, prefix: str) -> None:
    """Remove the folders of runs that were killed: those that are marked as one, and that no
    process holds, or that are empty.
    """
    for name in OS.listdir(directory):
        path = os.path.join(directory, name)
        if name.startswith(prefix):
            with suppress(OSError):
                if os.path.exists(os.path.join(path, JOURNAL)):
                    is_cleared(path)
                elif OS.lstat(path).st_mtime < time.time() - NEW_S:
                    OS.rmdir(path)

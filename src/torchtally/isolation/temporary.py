"""Where a run keeps what ends with it: a folder in the system's directory for temporary files.

A run that was killed leaves its folder; the next one removes it.
"""

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from torchtally.isolation.journal import JOURNAL, Journal, is_cleared
from torchtally.isolation.natives import OS

PREFIX = "tally-run-"
NEW_S = 60.0
"""How long a folder may be empty: its run is about to mark it."""


class TemporaryFolder:
    """An empty folder of one run, locked for as long as this process lives."""

    def __init__(self) -> None:
        system = tempfile.gettempdir()
        remove_left(system, PREFIX)
        self.path = os.path.realpath(os.path.join(system, PREFIX + secrets.token_hex(4)))
        OS.mkdir(self.path, 0o700)
        self._journal = Journal(self.path)

    def inner(self, name: str) -> str:
        """The path of an empty folder in it."""
        path = os.path.join(self.path, name)
        if not os.path.isdir(path):
            OS.mkdir(path, 0o700)
        return path

    def remove(self) -> None:
        """What another thread of the script still writes there may stay, for the next run."""
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


@contextmanager
def temporary_files_in(folder: str) -> Iterator[None]:
    """Within, `tempfile` and what asks the environment use this folder, here and in programs."""
    before, variable = tempfile.tempdir, os.environ.get("TMPDIR")
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    try:
        yield
    finally:
        tempfile.tempdir = before
        os.environ.pop("TMPDIR")
        if variable is not None:
            os.environ["TMPDIR"] = variable

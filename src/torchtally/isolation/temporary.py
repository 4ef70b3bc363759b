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

PREFIX = "tally-"
NEW_S = 60.0
"""How long a folder may be empty: its run is about to mark it."""


@contextmanager
def temporary_folder() -> Iterator[str]:
    """Within, an empty folder, locked for as long as this process lives."""
    system = tempfile.gettempdir()
    remove_left(system, PREFIX)
    folder = os.path.join(system, PREFIX + secrets.token_hex(4))
    OS.mkdir(folder, 0o700)
    journal = Journal(folder)
    try:
        yield os.path.realpath(folder)
    finally:
        journal.close()
        shutil.rmtree(folder, ignore_errors=True)


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

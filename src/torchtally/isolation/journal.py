"""The file that marks a folder as that of a run, and lists what the run hides or moves.

A line is one change: where the files at a path come from, from now on. Processes that the run
forks append to the same file and read what others have appended. The folder of a run that was
killed needs no repair: nothing outside of it was changed, and the next run removes it.
"""

import fcntl
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import ClassVar

from torchtally.errors import UsageError
from torchtally.isolation.natives import OS

JOURNAL = ".journal"
TOKEN_BYTES = 4
NEW_S = 60.0
"""How long a folder may be empty: its run is about to mark it."""
MAGIC = b"torchtally files 1\n"
"""The first line of a journal."""


class Journal:
    """Journal of one folder, which is locked as long as the journal is open in the process that
    made it.
    """

    descriptors: ClassVar[set[int]] = set()
    """Those of all journals, which the script may not close: it closes ranges of them."""

    def __init__(self, folder: str, *, is_new: bool = True) -> None:
        """`is_new`: else that of a run that goes on, which another process has made."""
        self.path = os.path.join(folder, JOURNAL)
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
        self._descriptor: int = OS.open(self.path, flags | (os.O_CREAT if is_new else 0), 0o666)
        self.descriptors.add(self._descriptor)
        if is_new:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._descriptor, MAGIC)
        self._read_bytes = len(MAGIC)

    def append(self, path: str, lower: str | None) -> None:
        line = json.dumps([path, lower]).encode() + b"\n"
        os.write(self._descriptor, line)

    @property
    def has_news(self) -> bool:
        """Whether this process or another has appended since `news` was read."""
        return os.fstat(self._descriptor).st_size != self._read_bytes

    def news(self) -> Iterator[tuple[str, str | None]]:
        """Changes since the last call, by this process and others, in order."""
        size = os.fstat(self._descriptor).st_size
        if size == self._read_bytes:
            return
        data = os.pread(self._descriptor, size - self._read_bytes, self._read_bytes)
        whole, newline, _ = data.rpartition(b"\n")
        self._read_bytes += len(whole) + len(newline)
        for line in whole.splitlines():
            path, lower = json.loads(line)
            yield path, lower

    def reopen(self) -> None:
        """Appends, in a forked process, by a descriptor of its own, so that the lock stays
        behind.
        """
        inherited = self._descriptor
        self._descriptor = OS.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        self.descriptors.add(self._descriptor)
        self._close(inherited)

    def close(self) -> None:
        self._close(self._descriptor)

    def _close(self, descriptor: int) -> None:
        self.descriptors.discard(descriptor)
        os.close(descriptor)


def new_folder(folder: str) -> Journal | None:
    """An empty folder with its journal, in the place of one that an earlier run has left.

    None where another run is using it, or has taken it just now. Raises UsageError where there is
    anything else, or no folder can be made.
    """
    fresh = f"{folder}.{secrets.token_hex(TOKEN_BYTES)}"
    try:
        remove_left(os.path.dirname(folder), f"{os.path.basename(folder)}.")
        if os.path.lexists(folder) and not is_cleared(folder):
            return None
        OS.mkdir(fresh)
        journal = Journal(fresh)
    except OSError as error:
        raise UsageError(
            f"{folder}: cannot hold what the script writes ({error.strerror}).\n"
            "Choose another place with -o FILE, or let the script write for real: --writes real."
        ) from error
    try:
        OS.rename(fresh, folder)  # fails for a folder with anything in it
    except OSError:
        journal.close()
        shutil.rmtree(fresh)
        return None
    journal.path = os.path.join(folder, JOURNAL)
    return journal


def remove_left(directory: str, prefix: str) -> None:
    """Remove folders that killed runs have left under names with a random end: those that are
    marked as a run's and that no process holds, and empty ones that none is about to mark.
    """
    left = re.compile(re.escape(prefix) + rf"[0-9a-f]{{{2 * TOKEN_BYTES}}}")
    for name in filter(left.fullmatch, OS.listdir(directory or ".")):
        path = os.path.join(directory, name)
        with suppress(OSError, UsageError):
            if os.path.lexists(os.path.join(path, JOURNAL)):
                is_cleared(path)
            elif OS.lstat(path).st_mtime < time.time() - NEW_S:
                OS.rmdir(path)


def is_cleared(folder: str) -> bool:
    """Remove what an earlier run has left; False where a run goes on there.

    Raises UsageError unless a run has made the folder.
    """
    path = os.path.join(folder, JOURNAL)
    is_ours = False
    try:
        with open(path, "rb") as journal:
            is_ours = journal.readline() == MAGIC
            fcntl.flock(journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_ours and os.path.samestat(os.stat(path), os.fstat(journal.fileno())):
                old = f"{folder}.{secrets.token_hex(TOKEN_BYTES)}"
                OS.rename(folder, old)
                shutil.rmtree(old)
                return True
    except BlockingIOError:
        return False
    except FileNotFoundError:
        is_ours = os.path.isdir(folder) and not os.path.islink(folder) and not os.listdir(folder)
    if not is_ours:
        raise UsageError(
            f"{folder}: exists and was not created by tally, which would put there what the "
            "script writes.\n"
            "Rename it, choose another place with -o FILE, or use --writes real."
        )
    return True

"""A file that grows, followed by its name as `tail -F` does."""

import os
import re
import stat
from collections.abc import Iterator
from typing import IO

from torchtally.errors import UsageError
from torchtally.files.reading import open_at_once

READ_BYTES = 1 << 20
MOST_LINE_BYTES = 1 << 20
"""Of a line that does not end: what is longer is no log's, and is dropped."""
ENDS = re.compile(rb"[\r\n]+")
"""A progress bar ends its lines by going back to the beginning of the line."""


class FollowedFile:
    """Whole lines, once each. A file that is absent is waited for; one that is renamed away is read
    to its end, then the new one of its name; one that is truncated is read from its beginning.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.notes: list[str] = []
        """What happened to the file; the reader takes them away."""
        self._file: IO[bytes] | None = None
        self._rest = b""

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def lines(self) -> Iterator[str]:
        """Those completed since the last time. Raises UsageError for what cannot be read."""
        if self._file is None:
            self._file = opened(self.path)
        if self._file is None:
            return
        yield from self._grown(self._file)
        if is_replaced(self._file, self.path):
            yield from self.last_line()
            self.close()
            self.notes.append(f"{self.path}: replaced by a new file; following that")
            yield from self.lines()

    def last_line(self) -> Iterator[str]:
        """The line that has no end yet, where nothing more is expected of it."""
        rest, self._rest = self._rest, b""
        if rest.strip():
            yield rest.decode("utf-8", "replace")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._rest = None, b""

    def _grown(self, file: IO[bytes]) -> Iterator[str]:
        if os.fstat(file.fileno()).st_size < file.tell():
            self.notes.append(f"{self.path}: truncated; following it from its beginning")
            file.seek(0)
            self._rest = b""
        while True:
            try:
                piece = file.read(READ_BYTES)
            except OSError as error:
                raise UsageError(f"{self.path}: cannot be read ({error.strerror}).") from error
            if not piece:
                return
            *whole, self._rest = ENDS.split(self._rest + piece)
            if len(self._rest) > MOST_LINE_BYTES:
                self._rest = b""
            for line in whole:
                if line and len(line) <= MOST_LINE_BYTES:
                    yield line.decode("utf-8", "replace")


def opened(path: str) -> IO[bytes] | None:
    """None for a file that is not there. Raises UsageError for what is none."""
    try:
        file = open(path, "rb", buffering=0, opener=open_at_once)  # noqa: SIM115
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path}: cannot be followed ({why or error}).") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UsageError(f"{path}: cannot be followed: it is not a regular file.")
    return file


def is_replaced(file: IO[bytes], path: str) -> bool:
    """Whether another file has the name now. A name that is gone may come back: until then its
    file is followed on.
    """
    try:
        named = os.stat(path)
    except OSError:
        return False
    return not os.path.samestat(named, os.fstat(file.fileno()))

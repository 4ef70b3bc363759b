"""Files that a user names, read within a bound, whatever they turn out to be.

`/dev/zero` ends at the bound, a pipe without a writer is empty instead of waited for, and a
directory is an error. TOML is bounded in what it holds, too: deep nesting and huge integers are
refused here, before arithmetic or recursion meets them.
"""

import errno
import os
import tomllib
from collections.abc import Iterator
from typing import Any

from torchtally.errors import UsageError

MOST_BYTES = 4_000_000
"""Of a text that a person writes."""
MOST_DEPTH = 50
MOST_DIGITS = 40

Path = str | os.PathLike[str]


def open_at_once(path: str, flags: int) -> int:
    """An `opener` for `open` that does not wait for the other end of a pipe.

    Reading a pipe that no process writes to then gives nothing at once (fifo(7)).
    """
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(handle, True)
    return handle


def read_bytes(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """All of a file. Raises OSError, for a larger one too."""
    try:
        with open(path, "rb", opener=open_at_once) as file:
            content = file.read(most_bytes + 1)
    except ValueError as error:  # a zero byte in the name
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from error
    if len(content) > most_bytes:
        reason = f"it holds more than {most_bytes} bytes"
        raise OSError(errno.EFBIG, reason, os.fspath(path))
    return content


def read_text(path: Path, what: str, most_bytes: int = MOST_BYTES) -> str:
    """Text of a file in UTF-8. Raises UsageError naming the file, and `what` it was to be."""
    try:
        return read_bytes(path, most_bytes).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"{os.fspath(path)}: cannot be read as {what}: {why}.") from error


def parse_toml(text: str, place: str, what: str) -> dict[str, Any]:
    """A TOML document. Raises UsageError naming its place, and `what` it was to be."""
    try:
        document = tomllib.loads(text)
        _check(document)
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:  # of TOML's syntax, or an integer of more than 4300 digits
        reason = str(error)
    else:
        return document
    raise UsageError(f"{place}: cannot be read as {what}: {reason}.")


def _check(document: dict[str, Any]) -> None:
    """Raises ValueError for what is nested too deeply, and for integers that no float can hold."""
    level: list[Any] = [document]
    for _ in range(MOST_DEPTH):
        for value in level:
            if isinstance(value, int) and abs(value) >= 10**MOST_DIGITS:
                raise ValueError(f"it holds an integer of more than {MOST_DIGITS} digits")
        level = list(_inner(level))
        if not level:
            return
    raise ValueError(f"it is nested more than {MOST_DEPTH} levels deep")


def _inner(values: list[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, dict):
            yield from value.values()
        elif isinstance(value, list):
            yield from value

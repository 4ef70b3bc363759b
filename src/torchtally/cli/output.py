"""Where reports go: the terminal's width and colours, and files written at the user's word."""

import os
import shutil
import sys
from typing import TextIO

from torchtally.atomic import write_atomically
from torchtally.errors import UsageError

PIPE_WIDTH = 80
LEAST_WIDTH = 40


def width() -> int:
    """Columns of the terminal (COLUMNS where it is set); 80 where there is none."""
    return max(shutil.get_terminal_size((PIPE_WIDTH, 24)).columns, LEAST_WIDTH)


def is_coloured(stream: TextIO) -> bool:
    """A terminal that knows colours, and a user who has not declined them (no-color.org)."""
    declined = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not declined and stream.isatty()


def emit(text: str, stream: TextIO | None = None) -> None:
    """Print a report. Characters that the stream's encoding lacks become question marks."""
    stream = sys.stdout if stream is None else stream
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))


def write_or_emit(text: str, place: str) -> None:
    """To a file, or to stdout for "-". Raises UsageError where the file cannot be written."""
    if place == "-":
        emit(text)
        return
    try:
        write_atomically(place, text.encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(f"{place}: cannot be written ({error.strerror}).") from error

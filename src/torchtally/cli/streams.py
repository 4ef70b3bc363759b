"""Standard streams that are closed, full, or read no longer; messages in a terminal's width."""

import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from torchtally.errors import OutputError
from torchtally.progress import printable_lines

NARROWEST = 20


def as_read(message: str) -> str:
    """A message for stderr, safe to print: wrapped between words in a terminal, else its lines as
    they are, for programs that search them.
    """
    message = printable_lines(message)
    if not sys.stderr.isatty():
        return message
    width = max(NARROWEST, shutil.get_terminal_size().columns)
    return "\n".join(
        textwrap.fill(
            line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        for line in message.split("\n")
    )


def say(message: str, stream: TextIO | None = None) -> None:
    """Prints on stderr, which may be as full or as closed as stdout: the exit code then says it
    alone.
    """
    stream = stream or sys.stderr
    if stream is not None:
        with suppress(OSError, ValueError):
            print(as_read(message), file=stream, flush=True)


@contextmanager
def unwritable_as_error() -> Iterator[None]:
    """Context around writing to stdout: a full disk becomes an OutputError.

    BrokenPipeError passes: a reader that has seen enough is no error.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"the output cannot be written ({reason}).") from error


def is_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C ended what was done. While a class is made, Python raises a RuntimeError of it
    (3.11, Objects/typeobject.c, type_new_set_names).
    """
    return isinstance(error.__cause__ or error, KeyboardInterrupt)

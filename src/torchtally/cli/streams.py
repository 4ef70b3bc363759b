"""Standard streams that are closed, full, or read no longer; messages in a terminal's width."""

import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

from torchtally.errors import OutputError

NARROWEST = 20


def as_read(message: str) -> str:
    """A message for stderr: wrapped between words in a terminal, else its lines as they are, for
    programs that search them.
    """
    if not sys.stderr.isatty():
        return message
    width = max(NARROWEST, shutil.get_terminal_size().columns)
    return "\n".join(
        textwrap.fill(
            line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        for line in message.split("\n")
    )


@contextmanager
def unwritable_as_error() -> Iterator[None]:
    """Around writing to stdout: a full disk becomes an OutputError.

    BrokenPipeError passes: a reader that has seen enough is no error.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"the output cannot be written ({reason}).") from error

"""Standard streams that are closed, full, or read no longer."""

from collections.abc import Iterator
from contextlib import contextmanager

from torchtally.errors import OutputError


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

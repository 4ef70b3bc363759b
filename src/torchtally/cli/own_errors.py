"""Errors of tally's own, which are told as such and decide nothing that they do not touch."""

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from torchtally.cli.streams import say
from torchtally.errors import TallyError

WHOLE = "TALLY_TRACEBACK"
"""The environment variable that asks for whole tracebacks."""


@contextmanager
def told(what: str, stream: TextIO | None) -> Iterator[None]:
    """Context in which an error of ours ends `what` is being made there, in a sentence, and nothing
    else.

    Errors that are the user's, and a reader who has gone, pass.
    """
    try:
        yield
    except (TallyError, BrokenPipeError):
        raise
    except Exception as error:
        say(f"tally: {sentence(what, error)}", stream)
        if os.environ.get(WHOLE):
            say("".join(traceback.format_exception(error)), stream)


def sentence(what: str, error: Exception) -> str:
    """Sentence about an error of ours: what it kept from being made, and where it goes."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    message = " ".join(traceback.format_exception_only(error)[-1].split())[:300]
    return (
        f"error of tally's own, not of the script: {what} could not be made ({message}{place}). "
        f"Please report it to torchtally's maintainers; {WHOLE}=1 shows more of it."
    )

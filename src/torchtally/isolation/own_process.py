"""Whether this process is tally's own, so that it may be restricted for as long as it lives."""

import os
from typing import ClassVar


class OwnProcess:
    """One that runs `tally`, and ends with the command."""

    number: ClassVar[int | None] = None


def own_process() -> None:
    """Say that this is one."""
    OwnProcess.number = os.getpid()


def is_own_process() -> bool:
    """Not one of a user's own (a notebook, pytest): it goes on when a run in it has ended."""
    return OwnProcess.number == os.getpid()

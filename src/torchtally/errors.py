"""The errors that are shown to the user as a message.

    TallyError                 the message is for the user: what, where, what now
    ├── UsageError             a wrong command line or argument            (exit 2)
    │   ├── UnknownChipError   a GPU name that no row of the table answers (exit 2)
    │   ├── UnknownFamilyError a config.json whose family has no row       (exit 2)
    │   └── RemedyError        whose remedy is an argument or an option    (exit 2)
    ├── ScriptError            the user's script cannot be run             (exit 2)
    ├── LimitError             a limit of a cell does not hold             (exit 3)
    ├── CheckpointError        damaged, or of another training             (exit 2)
    │   └── SaveError          could not be written                        (exit 1)
    ├── OutputError            stdout or a file is closed, full, ...       (exit 1)
    ├── TraceFileError         not there, not a trace, cut short, ...  (exit 2)
    ├── ProgramError           a run cannot be written out of recordings   (exit 1)
    ├── UnsupportedError       the virtual GPU cannot do this, and says so (exit 1)
    └── EndlessLoopError       a loop waits for a value that does not exist (exit 1)

`train` has its own: NaN or inf in a step (exit 4), out of memory, lost ranks (exit 1).

Our own mistakes are ``assert`` and ordinary exceptions: those print a traceback. After a script
that has run they are told in a sentence, and the rest of the report comes (`cli/own_errors.py`).
"""

from collections.abc import Collection, Iterable
from importlib import import_module
from typing import Any


class TallyError(Exception):
    """Base of all errors that are shown to the user as their message alone."""

    exit_code = 1


class UsageError(TallyError):
    exit_code = 2


class UnknownFamilyError(UsageError):
    """A config.json of a family without a row. The message lists the near matches."""


class UnknownChipError(UsageError):
    """No chip by this name. The message lists the near matches."""


class RemedyError(UsageError):
    """A mistake whose remedy is an argument in Python and an option on the command line."""

    def __init__(self, mistake: str, *, argument: str, option: str) -> None:
        super().__init__(f"{mistake}\n{argument}")
        self.by_option = f"{mistake}\n{option}"
        """The message for whoever gave a command."""


class ScriptError(TallyError):
    exit_code = 2


class LimitError(TallyError):
    """What must hold does not; the message has a line for each limit."""

    exit_code = 3


class CheckpointError(TallyError):
    """A checkpoint that is not as it was written, or a folder that can hold none."""

    exit_code = 2


class SaveError(CheckpointError):
    """A training that went on could not be saved: a full disk, weights that are NaN."""

    exit_code = 1


class OutputError(TallyError):
    """A report or a file that cannot be written: stdout is closed, the disk is full."""


class TraceFileError(TallyError):
    """A file that is not there, cannot be read, or is not what it is given as."""

    exit_code = 2


class ProgramError(TallyError):
    """A run that cannot be written out of recordings: layers unlike each other, other operators."""


class UnsupportedError(TallyError):
    pass


class EndlessLoopError(TallyError):
    """A condition read the same placeholder too often without a training step in between."""


def check_choice(what: str, value: object, choices: Collection[str]) -> None:
    """Raise UsageError for a value that is none of the choices; `what` begins the message."""
    if value not in choices:
        raise UsageError(f"{what} {value!r}. Choose one of {', '.join(choices)}.")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The remedy for an unknown name: "Did you mean line?", or all names where none is near."""
    from difflib import get_close_matches

    named = {known.lower(): known for known in names}
    begun = [known for known in named if known.startswith(name.lower())]
    near = [named[known] for known in begun or get_close_matches(name.lower(), named, n=3)]
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return f"Choose from: {', '.join(named.values())}."


def needed_package(name: str, what: str, extra: str, instead: str = "") -> Any:
    """The imported package or module. Raises UsageError that says what needs it, and the remedy."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UsageError(
            f"{what} needs {name.partition('.')[0]}, which cannot be imported ({error}). Install "
            f'it: pip install "torchtally[{extra}]"{instead}.'
        ) from error

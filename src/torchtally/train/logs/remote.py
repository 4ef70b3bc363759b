"""What logs of other packages have in common: the package, and the run's name from then on."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from torchtally.errors import UsageError
from torchtally.train.logs.log import LogName


def import_package(name: LogName, module: str | None = None) -> Any:
    """The imported module. Raises UsageError if it is not installed."""
    try:
        return importlib.import_module(module or name)
    except ImportError as error:
        raise UsageError(
            f"log.to: {name} is not installed ({error}). Install it, "
            f'pip install "torchtally[{name}]", or take {name} out of the logs.'
        ) from error


@contextmanager
def explain_start_errors(name: LogName, advice: str) -> Iterator[None]:
    """What goes wrong at the start is an error of the user's; chatter does not go to stdout."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except UsageError:
        raise
    except Exception as error:  # each package has errors of its own
        raise UsageError(f"log.to: {name} did not start ({_line(error)}). {advice}") from error


def run_of(folder: Path, name: LogName, *, is_resumed: bool, make: Callable[[], str]) -> str:
    """What the service calls the run: made by `make`, and kept in FOLDER/NAME.run for resuming.

    A run that is resumed and did not have this log before gets a new one.
    """
    path = folder / f"{name}.run"
    if is_resumed and path.is_file():
        return path.read_text("utf-8").strip()
    run_name = make()
    written = path.with_name(f".{path.name}.{os.getpid()}")
    written.write_text(f"{run_name}\n", "utf-8")
    written.replace(path)
    return run_name


def _line(error: Exception) -> str:
    """Its type and message, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}".rstrip(": ")

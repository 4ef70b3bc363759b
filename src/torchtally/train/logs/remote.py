"""Shared by the logs of other packages: importing them, and the name of the run."""

import importlib
import os
import sys
from collections.abc import Iterator
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
            f"log.to: {name} is not installed ({error}). Install it with "
            f'pip install "torchtally[{name}]", or remove {name} from log.to.'
        ) from error


@contextmanager
def explain_start_errors(name: LogName, advice: str) -> Iterator[None]:
    """Turn errors at the start into UsageErrors; redirect stdout to stderr."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except UsageError:
        raise
    except Exception as error:  # each package has its own errors
        raise UsageError(f"log.to: {name} did not start ({_line(error)}). {advice}") from error


def run_of(folder: Path, name: LogName, *, is_resumed: bool, first: str) -> str:
    """The service's name of the run: `first`, kept in FOLDER/NAME.run for resuming.

    A resumed run without one gets a new name.
    """
    path = folder / f"{name}.run"
    if is_resumed and path.is_file():
        return path.read_text("utf-8").strip()
    written = path.with_name(f".{path.name}.{os.getpid()}")
    written.write_text(f"{first}\n", "utf-8")
    written.replace(path)
    return first


def _line(error: Exception) -> str:
    """The type and message of the error, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}".rstrip(": ")

"""One run's isolation: its files kept apart, or written for real, as the user asks."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from torchtally.isolation import Writes
from torchtally.isolation.effects import drop_if_empty, effects_of
from torchtally.isolation.files import Files
from torchtally.isolation.session import isolated_files
from torchtally.trace import Effect, FileId, StubFile

SUFFIX = ".files"
"""Of the folder beside the trace's file."""
REAL, DROPPED = "real", "dropped"


@dataclass(frozen=True, slots=True)
class Isolation:
    """What the report asks of it."""

    files: Files | None
    """None where the script writes for real."""
    where: str
    """The folder as the user calls it, REAL or DROPPED."""
    facts: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "facts", {"files": self.where})

    @property
    def written(self) -> Callable[[Mapping[FileId, StubFile]], list[Effect]] | None:
        """Lists the script's effects on files."""
        return None if self.files is None else partial(effects_of, self.files)

    def suspend(self) -> AbstractContextManager[None]:
        """Within, this thread sees the file system as it is, to write what tally writes."""
        return nullcontext() if self.files is None else self.files.inside

    def tidy(self) -> None:
        """After the run: remove the folder where nothing is in it, or nobody asked for it."""
        if self.files is None or not os.path.isdir(self.files.overlay.folder):
            return
        if self.where == DROPPED:
            with self.files.inside:
                shutil.rmtree(self.files.overlay.folder)
        else:
            drop_if_empty(self.files)


def folder_beside(trace_file: str) -> str | None:
    """Where the files of a traced run are kept; None for a trace that goes to a device."""
    return None if trace_file.startswith("/dev/") else trace_file + SUFFIX


@contextmanager
def isolation(writes: Writes, folder: str | None, *, shown: str = "") -> Iterator[Isolation]:
    """Within, the script's files are isolated, or not.

    They are kept in a folder, which the user calls `shown`; without one they are dropped when the
    run has ended. Raises UsageError where the folder cannot be used.
    """
    if writes == "real":
        yield Isolation(None, REAL)
    elif folder is None:
        temporary = tempfile.mkdtemp(prefix="tally-files-")
        try:
            with isolated_files(temporary) as files:
                yield Isolation(files, DROPPED)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    else:
        with isolated_files(folder) as files:
            number = files.overlay.folder.removeprefix(os.path.realpath(folder))
            try:
                yield Isolation(files, (shown or folder) + number)
            finally:
                drop_if_empty(files)

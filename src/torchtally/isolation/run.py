"""One run's isolation: its files kept apart, or written for real, as the user asks."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from torchtally.isolation.callers import Ours
from torchtally.isolation.effects import drop_if_empty, effects_of
from torchtally.isolation.files import Files
from torchtally.isolation.keeper import Keeper
from torchtally.isolation.own_process import is_own_process
from torchtally.isolation.session import isolated_files
from torchtally.isolation.temporary import TemporaryFolder
from torchtally.options.simulation import Writes
from torchtally.trace import Effect, FileId, StubFile

T = TypeVar("T")

SUFFIX = ".files"
"""Of the folder beside the trace's file."""
REAL, DROPPED = "real", "dropped"
BY_KERNEL, BY_PYTHON = "kernel", "python"
"""Who keeps the script from changing other files: Landlock, or Python's own functions."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """What the report asks of it."""

    files: Files | None
    """None where the script writes for real."""
    where: str
    """The folder as the user calls it, REAL or DROPPED."""
    temporary: TemporaryFolder | None = None
    facts: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        facts = {"files": self.where}
        if self.files is not None:
            facts["files_kept_by"] = BY_KERNEL if self.files.are_kept_by_kernel else BY_PYTHON
        object.__setattr__(self, "facts", facts)

    @property
    def written(self) -> Callable[[Mapping[FileId, StubFile]], list[Effect]] | None:
        """Lists the script's effects on files."""
        return None if self.files is None else partial(effects_of, self.files)

    def outside(self, function: Callable[..., T], *args: Any) -> T:
        """What a function of tally returns or raises, which sees and changes the file system as it
        is: it saves a trace.
        """
        keeper = None if self.files is None else self.files.overlay.keeper
        if keeper is not None:
            return keeper.do(function, *args)
        with Ours.thread():
            return function(*args)

    def tidy(self) -> None:
        """Removes the folder, after the run and outside of it, where nothing is in it or it was not
        asked for, and the temporary files.
        """
        if self.files is None:
            return
        if self.where == DROPPED:
            shutil.rmtree(self.files.overlay.folder, ignore_errors=True)
        else:
            drop_if_empty(self.files)
        if self.temporary is not None:
            self.temporary.remove()


def folder_beside(trace_file: str) -> str | None:
    """Folder that keeps the files of a traced run; None for a trace that goes to a device."""
    return None if trace_file.startswith("/dev/") else trace_file + SUFFIX


@contextmanager
def isolation(
    writes: Writes,
    folder: str | None,
    *,
    shown: str = "",
    restricts: bool = False,
    temporary_in: str | None = None,
    own: Iterable[str] = (),
) -> Iterator[Isolation]:
    """Context in which the script's files are isolated, or not.

    They are kept in a folder, which the user calls `shown`; without one they are dropped when the
    run has ended. `restricts`: a process of tally's own is restricted by the kernel, where it can,
    until it has ended; but for `own`, folders of tally's in which it writes during the run.
    `temporary_in`: one for temporary files, instead of the system's.

    Raises UsageError where the folder cannot be used.
    """
    if writes == "real":
        yield Isolation(None, REAL)
        return
    keeper = Keeper() if restricts and is_own_process() else None
    temporary = TemporaryFolder(temporary_in)
    isolated = None
    try:
        place = folder or temporary.inner("files")
        with isolated_files(place, temporary, keeper, own) as files:
            number = files.overlay.folder.removeprefix(os.path.realpath(place))
            where = (shown or folder) + number if folder else DROPPED
            isolated = Isolation(files, where, temporary)
            yield isolated
    finally:
        if isolated is None:
            temporary.remove()
        else:
            isolated.outside(isolated.tidy)
        temporary.close()

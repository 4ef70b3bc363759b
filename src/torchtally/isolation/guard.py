"""Refuses changes to the user's files that do not come through the overlay.

CPython announces every file that Python code opens, removes or changes (an audit event), by
whatever function. A hook cannot be taken away again: there is one for the process, and it looks at
nothing while no run is isolated. What compiled libraries do without Python is not announced.
"""

import os
import stat
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any, Protocol

from torchtally.errors import TallyError
from torchtally.isolation.natives import OS

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
PATHS = {
    "os.remove": (0,), "os.rmdir": (0,), "os.rename": (0, 1), "os.link": (0,),
    "os.truncate": (0,), "os.chmod": (0,), "os.chown": (0,), "os.utime": (0,),
    "os.setxattr": (0,), "os.removexattr": (0,), "os.chflags": (0,), "sqlite3.connect": (0,),
}  # fmt: skip
"""Which arguments of an event are paths of files that are changed."""
CHILDREN = frozenset({"subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.spawn"})


class RefusedWriteError(TallyError, PermissionError):
    """A change to a file that existed before the run, by a way that the overlay does not know."""


class Guarded(Protocol):
    """The files of a run."""

    def are_changed_by(self, frame: FrameType | None) -> bool:
        """Whether the script, not tally, makes a change from this frame on."""

    def owns(self, path: str) -> bool:
        """Whether the run has made the file, so that it may change it."""

    def note_created(self, path: str) -> None: ...

    def child_started(self, program: str) -> None: ...

    @property
    def are_kept_by_kernel(self) -> bool:
        """Whether changes that nobody announces are denied, too."""


class Guard:
    """The process's hook, and the files that it guards now."""

    files: Guarded | None = None
    is_installed = False


def is_kept_by_kernel() -> bool:
    """Whether the kernel denies this run the change of any file but its own."""
    return Guard.files is not None and Guard.files.are_kept_by_kernel


def watch(files: Guarded | None) -> None:
    """Guard these files from now on; None for none."""
    if not Guard.is_installed:
        sys.addaudithook(partial(hook, CHECKS, Guard, sys._getframe))
        Guard.is_installed = True
    Guard.files = files


def hook(
    checks: Mapping[str, "Check"],
    guard: type[Guard],
    frame_of: Callable[[int], FrameType],
    event: str,
    args: tuple[Any, ...],
) -> None:
    """Reads no global name: Python sets a module's to None at exit, and goes on calling hooks."""
    check = checks.get(event)
    if check is None or guard.files is None or not guard.files.are_changed_by(frame_of(1)):
        return
    check(guard.files, event, args)


def check_open(files: Guarded, event: str, args: tuple[Any, ...]) -> None:
    path, _, flags = args
    if not isinstance(flags, int) or not flags & WRITING or isinstance(path, int) or path is None:
        return
    if flags & os.O_CREAT and not OS.access(path, os.F_OK):
        files.note_created(os.path.realpath(os.fsdecode(path)))
        return
    check_path(files, event, path)


def check_paths(files: Guarded, event: str, args: tuple[Any, ...]) -> None:
    for place in PATHS[event]:
        if not isinstance(args[place], int):
            check_path(files, event, args[place])
    if event == "os.rename":
        files.note_created(os.path.realpath(os.fsdecode(args[1])))


def check_path(files: Guarded, event: str, path: Any) -> None:
    """Raise RefusedWriteError where the path is of a file or directory that was there before."""
    name = os.fsdecode(path)
    try:
        mode = OS.lstat(name).st_mode
    except (OSError, ValueError):
        return
    changeable = stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
    if changeable and not files.owns(os.path.abspath(name)):
        raise RefusedWriteError(
            f"tally refused to change {name} ({event}): it existed before this simulated run, "
            "and the change bypasses the run's own files.\n"
            "Let the script write for real with --writes real."
        )


def check_child(files: Guarded, event: str, args: tuple[Any, ...]) -> None:
    program = args[0] if args[0] is not None else (args[1] or ["?"])[0]
    if isinstance(program, (str, bytes, os.PathLike)):
        words = os.fsdecode(program).split()
        files.child_started(os.path.basename(words[0]) if words else "?")


Check = Callable[[Guarded, str, tuple[Any, ...]], None]
CHECKS: dict[str, Check] = {
    "open": check_open,
    **dict.fromkeys(PATHS, check_paths),
    **dict.fromkeys(CHILDREN, check_child),
}

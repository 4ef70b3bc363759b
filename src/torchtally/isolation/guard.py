"""Refuses changes to the user's files that do not come through the overlay.

CPython announces every file that Python code opens, removes or changes, by whatever function. What
compiled libraries do without Python is not announced.
"""

import os
import stat
from functools import partial
from types import FrameType
from typing import Any

from torchtally.errors import TallyError
from torchtally.isolation import audit, denials
from torchtally.isolation.files import Files
from torchtally.isolation.naming import WRITING
from torchtally.isolation.natives import OS
from torchtally.trace import EffectKind

PATHS = {
    **dict.fromkeys(("os.remove", "os.rmdir", "os.link", "os.truncate", "sqlite3.connect"), (0,)),
    **dict.fromkeys(("os.chmod", "os.chown", "os.utime", "os.chflags"), (0,)),
    **dict.fromkeys(("os.setxattr", "os.removexattr"), (0,)),
    "os.rename": (0, 1),
}
"""Which arguments of an event are paths of files that are changed."""
CHILDREN = ("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.spawn")
KIND = "files"


class RefusedWriteError(TallyError, PermissionError):
    """A change to a file that existed before the run, by a way that the overlay does not know."""


def is_kept_by_kernel() -> bool:
    """Whether the kernel denies this run the change of any file but its own."""
    files: Files | None = audit.watching(KIND)
    return files is not None and files.are_kept_by_kernel


def watch(files: Files | None) -> None:
    """Guard these files from now on; None for none."""
    audit.watch(KIND, files, CHECKS)


def report_to(report: audit.Report) -> None:
    """Tell `report` of each change that is refused, where files are guarded."""
    files: Files | None = audit.watching(KIND)
    if files is not None:
        files.report = report
        if files.are_kept_by_kernel:
            denials.watch(files)


def check_open(files: Files, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
    path, _, flags = args
    if not isinstance(flags, int) or not flags & WRITING or isinstance(path, int) or path is None:
        return
    if flags & os.O_CREAT and not OS.access(path, os.F_OK):
        files.note_created(os.path.realpath(os.fsdecode(path)))
        return
    check_path(files, event, path, frame)


def check_paths(files: Files, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
    for place in PATHS[event]:
        if not isinstance(args[place], int):
            check_path(files, event, args[place], frame)
    if event == "os.rename":
        files.note_created(os.path.realpath(os.fsdecode(args[1])))


def check_path(files: Files, event: str, path: Any, frame: FrameType) -> None:
    """Raise RefusedWriteError where the path is of a file or directory that was there before."""
    name = os.fsdecode(path)
    try:
        mode = OS.lstat(name).st_mode
    except (OSError, ValueError):
        return
    changeable = stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)
    if changeable and not files.owns(os.path.abspath(name)):
        if files.report is not None:
            files.report(EffectKind.REFUSED_WRITE, os.path.abspath(name), frame)
        raise RefusedWriteError(
            f"tally refused to change {name} ({event}): it existed before this simulated run, "
            "and the change bypasses the run's own files.\n"
            "Let the script write for real with --writes real."
        )


def check_child(files: Files, event: str, args: tuple[Any, ...], _: FrameType) -> None:
    program = args[0] if args[0] is not None else (args[1] or ["?"])[0]
    if isinstance(program, (str, bytes, os.PathLike)):
        words = os.fsdecode(program).split()
        files.child_started(os.path.basename(words[0]) if words else "?")


def by_script(
    check: audit.Check, files: Files, event: str, args: tuple[Any, ...], frame: FrameType
) -> None:
    if files.are_changed_by(frame):
        check(files, event, args, frame)


CHECKS: dict[str, audit.Check] = {
    "open": partial(by_script, check_open),
    **dict.fromkeys(PATHS, partial(by_script, check_paths)),
    **dict.fromkeys(CHILDREN, partial(by_script, check_child)),
}

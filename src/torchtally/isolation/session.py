"""Isolate a run's files: put every stand-in in place, and take it away again."""

import builtins
import io
import multiprocessing.util
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

from torchtally.isolation import guard
from torchtally.isolation.callers import for_script
from torchtally.isolation.changing import Changing
from torchtally.isolation.environment import environment
from torchtally.isolation.files import Files, is_by_downloader
from torchtally.isolation.imports import importing_written
from torchtally.isolation.keeper import Keeper
from torchtally.isolation.kernel import is_enforced, restrict
from torchtally.isolation.looking import Looking
from torchtally.isolation.natives import FILE_IO, OS
from torchtally.isolation.overlay import Overlay
from torchtally.isolation.shared_memory import shared_memory, shared_names
from torchtally.isolation.temporary import TemporaryFolder
from torchtally.isolation.writers import sqlite, torch_writers, writers
from torchtally.virtual.aliases import replacing
from torchtally.virtual.later_modules import patching
from torchtally.virtual.stand_ins import StandIn, apply, as_function

BY_PYTHON = {"HF_HUB_DISABLE_XET": "1"}
"""By which libraries download in Python, whose files the keeper opens, not by compiled code."""


@contextmanager
def isolated_files(
    folder: str, temporary: TemporaryFolder, keeper: Keeper | None, own: Iterable[str] = ()
) -> Iterator[Files]:
    """Context in which what the script writes goes to a folder, and what existed before stays
    unchanged.

    The folder is emptied first when an earlier run has left it. With a keeper, the kernel denies
    this thread any other change, but of `own` folders, for ever. Raises UsageError where the folder
    is something else, or cannot be made.
    """
    overlay = Overlay(folder, os.getcwd())
    files = Files(overlay, tempfile.gettempdir())
    with ExitStack() as stack:
        stack.callback(overlay.close)
        if keeper is not None:
            place = temporary.take()
            overlay.real_roots.add(place)
            overlay.keeper = keeper  # needed as well where the kernel does a part of it
            stack.enter_context(environment(BY_PYTHON))
            files.are_kept_by_kernel = kept_by_kernel(
                (overlay.folder, place, *own), probe=f"{temporary.path}/probe"
            )
        place_stand_ins(files, stack, shared_names())
        if keeper is None:  # else the guard holds until the process has ended
            stack.callback(setattr, files, "is_over", True)
            stack.callback(Active.leave, files)
        Active.enter(files)
        yield files


def place_stand_ins(files: Files, stack: ExitStack, shared: Sequence[str]) -> None:
    """Lead through the overlay whatever opens and changes files, until the stack is closed.
    `shared` memory was there before.
    """
    files.shared = tuple(shared)
    stand_ins = [*os_functions(files), *opening(files)]
    functions = {
        getattr(each.owner, each.name): each.value for each in stand_ins if callable(each.value)
    }
    for each in stand_ins:
        if isinstance(each.value, FunctionType):  # to be pickled by name, for another process
            each.value.__module__, each.value.__qualname__ = each.owner.__name__, each.name
    stack.enter_context(apply([*stand_ins, *shared_memory(files), *torch_writers(files)]))
    stack.enter_context(replacing(functions))
    stack.enter_context(supporting(stand_ins))
    stack.enter_context(patching(writers(files)))
    stack.enter_context(importing_written(files.overlay))


def kept_by_kernel(folders: Iterable[str], *, probe: str) -> bool:
    """Whether the kernel lets this thread change what is in some folders alone from now on, as is
    tried with a file elsewhere.
    """
    os.close(OS.open(probe, os.O_WRONLY | os.O_CREAT, 0o600))
    try:
        restrict(folders)
    except OSError:
        return False
    return is_enforced(probe)


def opening(files: Files) -> list[StandIn]:
    """Functions that open files by path, other than those of `os`."""
    opened, connect = as_function(files.open), sqlite(files, sqlite3.connect)
    return [
        StandIn(builtins, "open", opened),
        StandIn(io, "open", opened),
        StandIn(io, "open_code", as_function(files.open_code)),
        StandIn(io, "FileIO", file_io(files)),
        StandIn(sqlite3, "connect", connect),
        StandIn(sqlite3.dbapi2, "connect", connect),
        StandIn(multiprocessing.util, "spawnv_passfds", spawning(files)),
        *([StandIn(subprocess, "_fork_exec", building(files))] if os.name == "posix" else []),
        # Its other way opens every directory on the way and works below the open one.
        StandIn(shutil, "_use_fd_functions", False),
    ]


def building(files: Files) -> Any:
    """Compilers are started by the keeper, since what they build is kept for the next run."""
    native = subprocess._fork_exec  # type: ignore[attr-defined]

    def fork_exec(*args: Any) -> int:
        keeper = files.overlay.keeper
        if keeper is None or files.is_off or not is_by_downloader():
            return int(native(*args))
        return int(keeper.call(native, *args))

    return fork_exec


JOIN = (
    "from torchtally.isolation.session import join; "
    "join({folder!r}, {start!r}, {real_roots!r}, {shared!r}); "
)


def spawning(files: Files) -> Any:
    """Processes that multiprocessing does not fork are announced by no audit event. They take part
    in the run: its server of semaphores and shared memory writes no file, and need not.
    """
    native = multiprocessing.util.spawnv_passfds

    def spawnv_passfds(path: Any, args: Any, passfds: Any) -> int:
        files.child_started("python (multiprocessing)")
        words = list(args)
        if "-c" in words and "resource_tracker" not in words[place := words.index("-c") + 1]:
            overlay = files.overlay
            overlay.is_clean = False  # what the process changes, this one learns
            join_first = JOIN.format(
                folder=overlay.folder,
                start=overlay.start,
                real_roots=sorted(overlay.real_roots),
                shared=files.shared,
            )
            words[place] = join_first + words[place]
        return native(path, words, passfds)

    return spawnv_passfds


def join(folder: str, start: str, real_roots: Iterable[str], shared: Sequence[str]) -> None:
    """Take part in a run, from the first line of a process that it has spawned to its end."""
    files = Files(Overlay(folder, start, is_new=False), tempfile.gettempdir())
    files.overlay.real_roots.update(real_roots)
    Active.joined = ExitStack()
    place_stand_ins(files, Active.joined, shared)
    Active.enter(files)


def file_io(files: Files) -> type:
    """`io.FileIO`: a class that opens; what the native one has opened is an instance of it, too."""

    class Meta(type(FILE_IO)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, FILE_IO)

    class FileIO(FILE_IO, metaclass=Meta):
        def __init__(
            self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None
        ) -> None:
            if files.is_off or isinstance(file, int) or opener is not None:
                for_script(super().__init__, file, mode, closefd, opener)
            else:
                super().__init__(file, mode, closefd, files.opener)

    return FileIO


def os_functions(files: Files) -> list[StandIn]:
    """All functions of `os` that take a path, as far as this system has them."""
    looking, changing = Looking(files), Changing(files)
    methods = {
        name: as_function(getattr(owner, name))
        for owner in (looking, changing)
        for name in vars(type(owner))
        if not name.startswith("_") and callable(getattr(OS, name, None))
    }
    made_of = {
        looking.looking: ("access", "statvfs", "pathconf", "getxattr", "listxattr"),
        changing.making: ("mkfifo", "mknod"),
        changing.changing: CHANGING,
    }
    functions = {
        **methods,
        "open": as_function(files.open_descriptor),
        "remove": methods["unlink"],
        "replace": methods["rename"],
        **{
            name: make(getattr(OS, name))
            for make, names in made_of.items()
            for name in names
            if hasattr(OS, name)
        },
    }
    for name, by_path in (("fchmod", "chmod"), ("fchown", "chown")):
        if hasattr(OS, name):
            functions[name] = changing.changing_open(getattr(OS, name), functions[by_path])
    return [StandIn(os, name, value) for name, value in functions.items()]


CHANGING = tuple(
    """
    chmod lchmod chown lchown utime truncate setxattr removexattr chflags lchflags
    """.split()
)


@contextmanager
def supporting(stand_ins: list[StandIn]) -> Iterator[None]:
    """Context in which `os.utime in os.supports_follow_symlinks` is as true as before, and its
    like.
    """
    tables: tuple[set[Any], ...] = (
        os.supports_dir_fd,
        os.supports_follow_symlinks,
        os.supports_fd,
        os.supports_effective_ids,
    )
    added: list[tuple[set[Any], Any]] = []
    for table in tables:
        for stand_in in stand_ins:
            if stand_in.owner is os and getattr(OS, stand_in.name) in table:
                new = getattr(os, stand_in.name)
                table.add(new)
                added.append((table, new))
    try:
        yield
    finally:
        for table, new in added:
            table.discard(new)


class Active:
    """The isolated runs of the process: one at most, but a test may have one in another."""

    files: list[Files] = []  # noqa: RUF012
    joined: ExitStack | None = None
    """Of a process that has joined a run: closed where it is freed, hence kept."""

    @classmethod
    def enter(cls, files: Files) -> None:
        cls.files.append(files)
        guard.watch(files)

    @classmethod
    def leave(cls, files: Files) -> None:
        cls.files.remove(files)
        guard.watch(cls.files[-1] if cls.files else None)


def _before_fork() -> None:
    for files in Active.files:
        files.overlay.is_clean = False  # what the child changes, this process learns


def _after_fork_in_child() -> None:
    for files in Active.files:
        files.overlay.enter_child()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)

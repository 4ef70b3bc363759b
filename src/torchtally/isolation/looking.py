"""Functions of `os` that look at files: they see both trees as one."""

import errno
import os
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

from torchtally.isolation.entries import MergedEntries, MergedEntry
from torchtally.isolation.files import Files
from torchtally.isolation.naming import error_of, led
from torchtally.isolation.natives import OS
from torchtally.isolation.places import parent_of


class Looking:
    """They take what the native ones take, and raise what those raise."""

    def __init__(self, files: Files) -> None:
        self.files, self.overlay = files, files.overlay

    @led(OS.stat, looks=True)
    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> Any:
        return self.files.look_up(path, dir_fd, follows_last=follow_symlinks)[1].stat

    @led(OS.lstat, looks=True)
    def lstat(self, path: Any, *, dir_fd: int | None = None) -> Any:
        return self.files.look_up(path, dir_fd, follows_last=False)[1].stat

    def looking(self, native: Callable[..., Any]) -> Any:
        """Stand-in for a function that reads about a path."""

        @led(native, looks=True)
        def stand_in(self: Looking, path: Any, *args: Any, **options: Any) -> Any:
            directory = options.pop("dir_fd", None)
            follows = options.get("follow_symlinks", True)
            try:
                place = self.files.look_up(path, directory, follows_last=follows)[1]
            except FileNotFoundError:
                if native is OS.access:
                    return False
                raise
            return native(place.path, *args, **options)

        return MethodType(stand_in, self)

    @led(OS.readlink, looks=True)
    def readlink(self, path: Any, *, dir_fd: int | None = None) -> Any:
        place = self.files.look_up(path, dir_fd, follows_last=False)[1]
        text = OS.readlink(place.path)
        return os.fsencode(text) if isinstance(path, bytes) else text

    @led(OS.listdir)
    def listdir(self, path: Any = None) -> Any:
        names = self.overlay.names(self._directory(path))
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    def _directory(self, path: Any) -> str:
        if isinstance(path, int):
            return self.files.path_of(path)
        logical, place = self.files.look_up("." if path is None else path)
        if not place.is_directory:
            raise error_of(errno.ENOTDIR, path)
        OS.scandir(place.path).close()  # raises where it may not be read
        return logical

    @led(OS.scandir)
    def scandir(self, path: Any = None) -> Any:
        logical = self._directory(path)
        if self.overlay.is_clean and logical != parent_of(self.overlay.folder):
            return OS.scandir(path)
        return MergedEntries(self._entries(path, logical, self.overlay.names(logical)))

    def _entries(self, path: Any, logical: str, names: list[str]) -> Iterator[MergedEntry]:
        given = "" if isinstance(path, int) else os.fsdecode("." if path is None else path)
        for name in names:
            inner = f"{logical.rstrip('/')}/{name}"
            shown = (name, os.path.join(given, name))
            shown_name, shown_path = map(os.fsencode, shown) if isinstance(path, bytes) else shown
            yield MergedEntry(shown_name, shown_path, inner, self.overlay)

    @led(OS.chdir, looks=True)
    def chdir(self, path: Any) -> None:
        OS.chdir(self.files.look_up(path)[1].path)

    @led(OS.getcwd, paths=0)
    def getcwd(self) -> str:
        return self.overlay.logical(OS.getcwd())

    @led(OS.getcwdb, paths=0)
    def getcwdb(self) -> bytes:
        return os.fsencode(self.getcwd())

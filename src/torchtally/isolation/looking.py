"""Functions of `os` that look at files: they see both trees as one."""

import errno
import os
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

from torchtally.isolation.entries import MergedEntries, MergedEntry
from torchtally.isolation.files import Files
from torchtally.isolation.naming import error_of, naming
from torchtally.isolation.natives import OS
from torchtally.isolation.places import RealFile, parent_of


class Looking:
    """They take what the native ones take, and raise what those raise."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> Any:
        if self.files.is_off or self.files.overlay.is_clean or isinstance(path, int):
            return OS.stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        with naming(path):
            return self.files.look_up(path, dir_fd, follows_last=follow_symlinks)[1].stat

    def lstat(self, path: Any, *, dir_fd: int | None = None) -> Any:
        return self.stat(path, dir_fd=dir_fd, follow_symlinks=False)

    def looking(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """For a function that reads about a path."""

        @wraps(native)
        def stand_in(path: Any, *args: Any, **options: Any) -> Any:
            if self.files.is_off or self.files.overlay.is_clean or isinstance(path, int):
                return native(path, *args, **options)
            with naming(path):
                directory = options.pop("dir_fd", None)
                follows = options.get("follow_symlinks", True)
                try:
                    place = self.files.look_up(path, directory, follows_last=follows)[1]
                except FileNotFoundError:
                    if native is OS.access:
                        return False
                    raise
                return native(place.path, *args, **options)

        return stand_in

    def readlink(self, path: Any, *, dir_fd: int | None = None) -> Any:
        if self.files.is_off or self.files.overlay.is_clean:
            return OS.readlink(path, dir_fd=dir_fd)
        with naming(path):
            place = self.files.look_up(path, dir_fd, follows_last=False)[1]
            text = OS.readlink(place.path)
            return os.fsencode(text) if isinstance(path, bytes) else text

    def listdir(self, path: Any = None) -> Any:
        if self.files.is_off:
            return OS.listdir(path)
        with naming(path):
            names = self.files.overlay.names(self._directory(path))
            return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    def _directory(self, path: Any) -> str:
        if isinstance(path, int):
            return self.files.path_of(path)
        logical, place = self.files.look_up("." if path is None else path)
        if not place.is_directory:
            raise error_of(errno.ENOTDIR, path)
        OS.scandir(place.path).close()  # raises where it may not be read
        return logical

    def scandir(self, path: Any = None) -> Any:
        if self.files.is_off:
            return OS.scandir(path)
        with naming(path):
            logical = self._directory(path)
            if self.files.overlay.is_clean and logical != parent_of(self.files.overlay.folder):
                return OS.scandir(path)
            return MergedEntries(self._entries(path, logical, self.files.overlay.names(logical)))

    def _entries(self, path: Any, logical: str, names: list[str]) -> Iterator[MergedEntry]:
        given = "" if isinstance(path, int) else os.fsdecode("." if path is None else path)
        for name in names:
            inner = f"{logical.rstrip('/')}/{name}"
            shown = (name, os.path.join(given, name))
            encoded = map(os.fsencode, shown) if isinstance(path, bytes) else shown
            shown_name, shown_path = encoded
            find, follow = partial(self._place, inner), partial(self._follow, inner)
            yield MergedEntry(shown_name, shown_path, find, follow)

    def _place(self, path: str) -> RealFile | None:
        return self.files.overlay.find(path)

    def _follow(self, path: str) -> RealFile | None:
        return self.files.overlay.find(self.files.overlay.resolve(path))

    def chdir(self, path: Any) -> None:
        if self.files.is_off or self.files.overlay.is_clean or isinstance(path, int):
            OS.chdir(path)
            return
        with naming(path):
            OS.chdir(self.files.look_up(path)[1].path)

    def getcwd(self) -> str:
        directory: str = OS.getcwd()
        return directory if self.files.is_off else self.files.overlay.logical(directory)

    def getcwdb(self) -> bytes:
        return os.fsencode(self.getcwd())

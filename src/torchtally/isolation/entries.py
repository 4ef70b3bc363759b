"""What `os.scandir` yields of a directory that is in both trees."""

import os
import stat
from collections.abc import Iterator
from typing import Any

from torchtally.isolation.overlay import Overlay
from torchtally.isolation.places import RealFile


class MergedEntry:
    """Stands for `os.DirEntry`."""

    __slots__ = ("_logical", "_overlay", "name", "path")

    def __init__(self, name: Any, path: Any, logical: str, overlay: Overlay) -> None:
        self.name, self.path = name, path
        self._logical, self._overlay = logical, overlay

    def _place(self, *, follow_symlinks: bool) -> RealFile | None:
        place = self._overlay.find(self._logical)
        if follow_symlinks and place is not None and place.is_link:
            place = self._overlay.find(self._overlay.resolve(self._logical))
        return place

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        place = self._place(follow_symlinks=follow_symlinks)
        return place is not None and place.is_directory

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        place = self._place(follow_symlinks=follow_symlinks)
        return place is not None and stat.S_ISREG(place.stat.st_mode)

    def is_symlink(self) -> bool:
        place = self._place(follow_symlinks=False)
        return place is not None and place.is_link

    def is_junction(self) -> bool:
        return False

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        place = self._place(follow_symlinks=follow_symlinks)
        if place is None:
            raise FileNotFoundError(2, os.strerror(2), self.path)
        return place.stat

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


class MergedEntries:
    """Stands for the iterator that `os.scandir` returns."""

    def __init__(self, entries: Iterator[MergedEntry]) -> None:
        self._entries = entries

    def __iter__(self) -> "MergedEntries":
        return self

    def __next__(self) -> MergedEntry:
        return next(self._entries)

    def __enter__(self) -> "MergedEntries":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())

"""Functions of `os` that make, remove and change files: they do it in the upper tree."""

import errno
from collections.abc import Callable
from types import MethodType
from typing import Any

from torchtally.isolation.files import Files
from torchtally.isolation.journal import Journal
from torchtally.isolation.naming import error_of, led, real_path_of
from torchtally.isolation.natives import OS
from torchtally.isolation.places import RealFile

LINK_FUNCTIONS = tuple(getattr(OS, name) for name in ("lchown", "lchmod") if hasattr(OS, name))


class Changing:
    """They take what the native ones take, and raise what those raise."""

    def __init__(self, files: Files) -> None:
        self.files, self.overlay = files, files.overlay

    @led(OS.mkdir)
    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._make(OS.mkdir, path, dir_fd, mode)

    def _make(
        self, native: Any, path: Any, directory: int | None, *args: Any, **options: Any
    ) -> None:
        """Something new under a path of the script."""
        new = self._new(path, directory)
        self.overlay.calling(new)(native, new, *args, **options)

    def _new(self, path: Any, directory: int | None) -> str:
        """Path at which it is made."""
        logical = self.files.logical(path, directory, follows_last=False)
        if self.overlay.find(logical) is not None:
            raise error_of(errno.EEXIST, path)
        if self.overlay.is_real(logical) or self.files.is_kept(logical):
            return logical
        return self.overlay.target(logical)

    @led(OS.rmdir)
    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        logical, place = self.files.look_up(path, dir_fd, follows_last=False)
        if not place.is_directory:
            raise error_of(errno.ENOTDIR, path)
        if self.overlay.names(logical):
            raise error_of(errno.ENOTEMPTY, path)
        self._remove(OS.rmdir, logical)

    @led(OS.unlink)
    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        logical, place = self.files.look_up(path, dir_fd, follows_last=False)
        if place.is_directory:
            raise error_of(errno.EISDIR, path)
        self._remove(OS.unlink, logical)

    def _remove(self, native: Any, logical: str) -> None:
        if self.overlay.is_real(logical):
            self.overlay.calling(logical)(native, logical)
        else:
            self.overlay.remove(logical)

    @led(OS.replace, paths=2)
    def rename(
        self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        source, place = self.files.look_up(src, src_dir_fd, follows_last=False)
        target = self.files.logical(dst, dst_dir_fd, follows_last=False)
        if source == target:
            return
        if target.startswith(source + "/"):
            raise error_of(errno.EINVAL, src)
        before = self.overlay.find(target)
        if before is not None:
            self._check_replaces(place, before, target)
        elif self.overlay.is_real(source):
            self.files.is_kept(target)
        self.overlay.rename(source, target)

    def _check_replaces(self, place: RealFile, before: RealFile, target: str) -> None:
        if place.is_directory and not before.is_directory:
            raise error_of(errno.ENOTDIR, target)
        if before.is_directory and not place.is_directory:
            raise error_of(errno.EISDIR, target)
        if before.is_directory and self.overlay.names(target):
            raise error_of(errno.ENOTEMPTY, target)

    @led(OS.link, paths=2)
    def link(
        self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:  # fmt: skip
        """Links a copy where the file existed before: by a second name of it, it could be
        changed.
        """
        logical, place = self.files.look_up(src, src_dir_fd, follows_last=False)
        if place.is_directory:
            raise error_of(errno.EPERM, src)
        new = self._new(dst, dst_dir_fd)
        self.overlay.calling(new)(OS.link, self.overlay.target(logical), new, follow_symlinks=False)

    @led(OS.symlink, paths=2)
    def symlink(
        self, src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None
    ) -> None:
        new = self._new(dst, dir_fd)
        self.overlay.calling(new)(OS.symlink, src, new, target_is_directory)
        self.overlay.forget_links()

    def closerange(self, low: int, high: int, /) -> None:
        """All but what the run itself has open."""
        for ours in sorted(Journal.descriptors):
            if low <= ours < high:
                OS.closerange(low, ours)
                low = ours + 1
        OS.closerange(low, high)

    def making(self, native: Callable[..., Any]) -> Any:
        """Stand-in for a function that makes a pipe or a device."""

        @led(native)
        def stand_in(
            self: Changing, path: Any, *args: Any, dir_fd: int | None = None, **options: Any
        ) -> Any:
            self._make(native, path, dir_fd, *args, **options)

        return MethodType(stand_in, self)

    def changing(self, native: Callable[..., Any]) -> Any:
        """Stand-in for a function that changes a file's mode, owner, times, length or
        attributes.
        """

        @led(native)
        def stand_in(self: Changing, path: Any, *args: Any, **options: Any) -> Any:
            if isinstance(path, int):
                place = self._changeable(path)
            else:
                directory = options.pop("dir_fd", None)
                follows = options.get("follow_symlinks", True) and native not in LINK_FUNCTIONS
                logical = self.files.look_up(path, directory, follows_last=follows)[0]
                place = self._target(logical)
            if place is not None:
                # The kernel lets the keeper alone change modes and times.
                self.overlay.calling(place, everywhere=True)(native, place, *args, **options)

        return MethodType(stand_in, self)

    def changing_open(self, native: Callable[..., Any], by_path: Callable[..., Any]) -> Any:
        """Stand-in for a function that changes the mode or owner of an open file."""

        @led(native)
        def stand_in(self: Changing, fd: int, *args: Any) -> Any:
            place = self._changeable(fd)
            if place is not None:
                function = native if isinstance(place, int) else by_path
                self.overlay.calling(place, everywhere=True)(function, place, *args)

        return MethodType(stand_in, self)

    def _changeable(self, descriptor: int) -> int | str | None:
        """An open file, or the path of its copy where it was opened in the lower tree to read."""
        real = real_path_of(descriptor)
        if not real.startswith("/") or self.overlay.is_real(real):
            return descriptor
        return self._target(self.overlay.logical(real))

    def _target(self, logical: str) -> str | None:
        """The path of a copy; None for a directory that existed before, which stays as it is."""
        place = self.overlay.find(logical)
        if place is not None and place.is_directory and place.path != self.overlay.upper(logical):
            return logical if self.overlay.is_real(logical) else None
        return self.overlay.target(logical)

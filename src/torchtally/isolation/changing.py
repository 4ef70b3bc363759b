"""Functions of `os` that make, remove and change files: they do it in the upper tree."""

import errno
from collections.abc import Callable
from functools import wraps
from typing import Any

from torchtally.isolation.files import Files
from torchtally.isolation.journal import Journal
from torchtally.isolation.naming import error_of, naming, real_path_of
from torchtally.isolation.natives import OS
from torchtally.isolation.places import RealFile

LINK_FUNCTIONS = tuple(getattr(OS, name) for name in ("lchown", "lchmod") if name in OS)


class Changing:
    """They take what the native ones take, and raise what those raise."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if self.files.is_off:
            OS.mkdir(path, mode, dir_fd=dir_fd)
            return
        with naming(path):
            new = self._new(path, dir_fd)
            self.files.overlay.calling(new)(OS.mkdir, new, mode)

    def _new(self, path: Any, directory: int | None) -> str:
        """Where something new is made under a path of the script."""
        logical = self.files.logical(path, directory, follows_last=False)
        if self.files.overlay.find(logical) is not None:
            raise error_of(errno.EEXIST, path)
        if self.files.overlay.is_real(logical) or self.files.is_kept(logical):
            return logical
        return self.files.overlay.target(logical)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        if self.files.is_off:
            OS.rmdir(path, dir_fd=dir_fd)
            return
        with naming(path):
            logical, place = self.files.look_up(path, dir_fd, follows_last=False)
            if self.files.overlay.is_real(logical):
                self.files.overlay.calling(logical)(OS.rmdir, logical)
                return
            if not place.is_directory:
                raise error_of(errno.ENOTDIR, path)
            if self.files.overlay.names(logical):
                raise error_of(errno.ENOTEMPTY, path)
            self.files.overlay.remove(logical)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        if self.files.is_off:
            OS.unlink(path, dir_fd=dir_fd)
            return
        with naming(path):
            logical, place = self.files.look_up(path, dir_fd, follows_last=False)
            if self.files.overlay.is_real(logical):
                self.files.overlay.calling(logical)(OS.unlink, logical)
                return
            if place.is_directory:
                raise error_of(errno.EISDIR, path)
            self.files.overlay.remove(logical)

    def rename(
        self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        if self.files.is_off:
            OS.replace(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            return
        with naming(src, dst):
            source, place = self.files.look_up(src, src_dir_fd, follows_last=False)
            target = self.files.logical(dst, dst_dir_fd, follows_last=False)
            if source == target:
                return
            if target.startswith(source + "/"):
                raise error_of(errno.EINVAL, src)
            before = self.files.overlay.find(target)
            if before is not None:
                self._check_replaces(place, before, target)
            elif self.files.overlay.is_real(source):
                self.files.is_kept(target)
            self.files.overlay.rename(source, target)

    def _check_replaces(self, place: RealFile, before: RealFile, target: str) -> None:
        if place.is_directory and not before.is_directory:
            raise error_of(errno.ENOTDIR, target)
        if before.is_directory and not place.is_directory:
            raise error_of(errno.EISDIR, target)
        if before.is_directory and self.files.overlay.names(target):
            raise error_of(errno.ENOTEMPTY, target)

    def link(
        self, src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:  # fmt: skip
        """Of its copy where it existed before: by a second name of it, it could be changed."""
        if self.files.is_off:
            OS.link(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd,
                    follow_symlinks=follow_symlinks)  # fmt: skip
            return
        with naming(src, dst):
            logical, place = self.files.look_up(src, src_dir_fd, follows_last=False)
            if place.is_directory:
                raise error_of(errno.EPERM, src)
            new = self._new(dst, dst_dir_fd)
            source = self.files.overlay.target(logical)
            self.files.overlay.calling(new)(OS.link, source, new, follow_symlinks=False)

    def symlink(
        self, src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None
    ) -> None:
        if self.files.is_off:
            OS.symlink(src, dst, target_is_directory, dir_fd=dir_fd)
            return
        with naming(src, dst):
            new = self._new(dst, dir_fd)
            self.files.overlay.calling(new)(OS.symlink, src, new, target_is_directory)
            self.files.overlay.forget_links()

    def closerange(self, low: int, high: int, /) -> None:
        """All but what the run itself has open."""
        for ours in sorted(Journal.descriptors):
            if low <= ours < high:
                OS.closerange(low, ours)
                low = ours + 1
        OS.closerange(low, high)

    def making(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """For a function that makes a pipe or a device."""

        @wraps(native)
        def stand_in(path: Any, *args: Any, dir_fd: int | None = None, **options: Any) -> Any:
            if self.files.is_off:
                return native(path, *args, dir_fd=dir_fd, **options)
            with naming(path):
                return native(self._new(path, dir_fd), *args, **options)

        return stand_in

    def changing(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """For a function that changes a file's mode, owner, times, length or attributes."""

        @wraps(native)
        def stand_in(path: Any, *args: Any, **options: Any) -> Any:
            if self.files.is_off:
                return native(path, *args, **options)
            with naming(path):
                if isinstance(path, int):
                    place = self._changeable(path)
                else:
                    directory = options.pop("dir_fd", None)
                    follows = options.get("follow_symlinks", True) and native not in LINK_FUNCTIONS
                    logical = self.files.look_up(path, directory, follows_last=follows)[0]
                    place = self._target(logical)
                if place is None:
                    return None
                # The kernel lets the keeper alone change modes and times.
                return self.files.overlay.calling(place, everywhere=True)(
                    native, place, *args, **options
                )

        return stand_in

    def changing_open(self, native: Callable[..., Any], by_path: Callable[..., Any]) -> Any:
        """For a function that changes the mode or owner of an open file."""

        @wraps(native)
        def stand_in(fd: int, *args: Any) -> Any:
            if self.files.is_off:
                return native(fd, *args)
            place = self._changeable(fd)
            if place is None:
                return None
            function = native if isinstance(place, int) else by_path
            return self.files.overlay.calling(place, everywhere=True)(function, place, *args)

        return stand_in

    def _changeable(self, descriptor: int) -> int | str | None:
        """An open file, or the path of its copy where it was opened in the lower tree to read."""
        real = real_path_of(descriptor)
        if not real.startswith("/") or self.files.overlay.is_real(real):
            return descriptor
        return self._target(self.files.overlay.logical(real))

    def _target(self, logical: str) -> str | None:
        """The path of a copy; None for a directory that existed before, which stays as it is."""
        place = self.files.overlay.find(logical)
        is_lower = place is not None and place.path != self.files.overlay.upper(logical)
        if place is not None and place.is_directory and is_lower:
            return logical if self.files.overlay.is_real(logical) else None
        return self.files.overlay.target(logical)

"""What the file system has at a path, and copies of it."""

import errno
import os
import stat
import sys
from collections.abc import Callable
from typing import NamedTuple

from torchtally.isolation.natives import OS


class RealFile(NamedTuple):
    """A file at which a logical path really is, and what is there."""

    path: str
    stat: os.stat_result

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.stat.st_mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.stat.st_mode)


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def place_at(path: str) -> RealFile | None:
    """What the file system has there; None for nothing."""
    try:
        return RealFile(path, OS.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_directory(path: str) -> bool:
    place = place_at(path)
    return place is not None and place.is_directory


def copy_file(
    place: RealFile,
    target: str,
    set_times: Callable[[str, tuple[int, int]], None],
    *,
    has_content: bool = True,
) -> None:
    """A copy with the same mode and times. Sockets, pipes and devices are never copied."""
    if place.is_link:
        OS.symlink(OS.readlink(place.path), target)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    mode = stat.S_IMODE(place.stat.st_mode)
    writer: int = OS.open(target, flags, mode | stat.S_IWUSR)
    try:
        if has_content:
            copy_content(place.path, writer)
    finally:
        os.close(writer)
    set_times(target, (place.stat.st_atime_ns, place.stat.st_mtime_ns))


def copy_content(source: str, writer: int) -> None:
    """Copies by the kernel where it can: a file system that shares blocks copies nothing."""
    reader: int = OS.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        copy: Callable[[int, int], int] = copy_range if sys.platform == "linux" else copy_block
        while copy(reader, writer):
            continue
    finally:
        os.close(reader)


COPY_BYTES = 1 << 30
BLOCK_BYTES = 1 << 20


def copy_range(reader: int, writer: int) -> int:
    try:
        return os.copy_file_range(reader, writer, COPY_BYTES)
    except OSError as error:
        # Across file systems before Linux 5.3, and some that cannot.
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        return copy_block(reader, writer)


def copy_block(reader: int, writer: int) -> int:
    block = os.read(reader, BLOCK_BYTES)
    written = 0
    while written < len(block):
        written += os.write(writer, block[written:])
    return written

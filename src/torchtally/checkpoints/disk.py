"""An open directory, and durable files in it: every write is flushed before it is reported.

All paths are relative to the open directory, so it cannot be swapped for another meanwhile. New
files are created with O_EXCL, and symbolic links are not followed.
"""

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torchtally.checkpoints.closing import Closing
from torchtally.errors import CheckpointError
from torchtally.files.atomic import sync_directory
from torchtally.units import format_bytes

WRITE_CHUNK_BYTES = 8 * 2**20
"""Written or read per call; other threads run in between."""

Bytes = bytes | memoryview


class Directory(Closing):
    """An open directory. Every OSError is raised as a CheckpointError that names the path."""

    def __init__(self, path: Path, handle: int) -> None:
        self.path = path
        self._handle = handle

    @classmethod
    def open(cls, path: Path, *, follows_links: bool = False) -> "Directory":
        """The directory at this path; its parents may be symbolic links."""
        with explain_os_errors(path, "opened"):
            return cls(path, os.open(path, _DIRECTORY if follows_links else _OWN_DIRECTORY))

    @classmethod
    def ensure(cls, path: Path, *, follows_links: bool = False) -> "Directory":
        """The same, created if missing. Its name is durable after `sync_way_to`."""
        with explain_os_errors(path, "created"):
            if not os.path.lexists(path):
                path.mkdir(parents=True, exist_ok=True)
        return cls.open(path, follows_links=follows_links)

    def lock(self) -> bool:
        """Lock the directory until it is closed; False where another process holds the lock."""
        with explain_os_errors(self.path, "locked"):
            return lock_handle(self._handle)

    def make(self, name: str) -> "Directory":
        """Create a directory in this one."""
        path = self.path / name
        with explain_os_errors(path, "created"):
            os.mkdir(name, dir_fd=self._handle)
            return self.inner(name)

    def inner(self, name: str) -> "Directory":
        """A directory in this one; a symbolic link is refused."""
        path = self.path / name
        with explain_os_errors(path, "opened"):
            return Directory(path, os.open(name, _OWN_DIRECTORY, dir_fd=self._handle))

    def names(self) -> list[str]:
        with explain_os_errors(self.path, "read"):
            return sorted(os.listdir(self._handle))

    def size_bytes(self, name: str) -> int:
        """The size of a regular file. Raises CheckpointError for anything else."""
        path = self.path / name
        with explain_os_errors(path, "read"):
            status = os.stat(name, dir_fd=self._handle, follow_symlinks=False)
        _check_plain(path, status)
        return status.st_size

    def write(self, name: str, parts: Iterable[Bytes], size_bytes: int) -> None:
        """Write a new file; durable when this returns. `size_bytes` is for the error message."""
        path = self.path / name
        with explain_os_errors(path, "written", size_bytes):
            handle = os.open(name, _NEW_FILE, 0o666, dir_fd=self._handle)
            try:
                for part in parts:
                    _write_all(handle, part)
                os.fsync(handle)
            finally:
                os.close(handle)

    def chunks(self, name: str) -> Iterator[bytes]:
        """The contents of a regular file, a few MiB at a time."""
        with self._reading(name) as handle:
            while chunk := os.read(handle, WRITE_CHUNK_BYTES):
                yield chunk

    def read_into(self, numbers: memoryview, name: str, first_byte: int) -> None:
        """Fill these bytes from a regular file. Raises CheckpointError if it is shorter."""
        at = 0
        with self._reading(name) as handle:
            while at < len(numbers):
                part = numbers[at : at + WRITE_CHUNK_BYTES]
                count = os.preadv(handle, [part], first_byte + at)
                if not count:
                    raise CheckpointError(f"{self.path / name}: ends at byte {first_byte + at}.")
                at += count

    def rename(self, old: str, new: str) -> None:
        """Rename within this directory; durable when this returns."""
        with explain_os_errors(self.path / new, "put in place"):
            os.rename(old, new, src_dir_fd=self._handle, dst_dir_fd=self._handle)
        self.sync()

    def sync(self) -> None:
        """Make names created or changed in this directory durable."""
        with explain_os_errors(self.path, "flushed to the disk"):
            sync_directory(self._handle)

    def remove(self, name: str) -> None:
        """Remove a directory and its contents; links in it are removed, not followed."""
        with explain_os_errors(self.path / name, "removed"):
            try:
                shutil.rmtree(name, dir_fd=self._handle)
            except OSError as error:
                # NFS keeps .nfs... for a file that is still open somewhere: the next start removes
                # it.
                if error.errno not in (errno.ENOTEMPTY, errno.EBUSY):
                    raise

    @contextmanager
    def _reading(self, name: str) -> Iterator[int]:
        path = self.path / name
        with explain_os_errors(path, "read"):
            handle = os.open(name, _OWN_FILE, dir_fd=self._handle)
            try:
                _check_plain(path, os.fstat(handle))
                yield handle
            finally:
                os.close(handle)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OWN_DIRECTORY = _DIRECTORY | os.O_NOFOLLOW
_OWN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # do not block on a FIFO
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LOCKS = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL)
"""What file systems without locks answer."""


def lock_handle(handle: int) -> bool:
    """Lock an open file until it is closed; False where another process holds the lock."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def is_there(path: Path) -> bool:
    """Whether the name exists, dangling links included."""
    with explain_os_errors(path, "read"):
        try:
            os.lstat(path)
        except FileNotFoundError:
            return False
    return True


def sync_way_to(path: Path) -> None:
    """Make the names of all parent directories durable, whoever created them."""
    for parent in path.resolve().parents:
        try:
            with explain_os_errors(parent, "flushed to the disk"):
                _sync(parent)
        except CheckpointError as error:
            if isinstance(error.__cause__, PermissionError):
                return  # a directory this user may not read was not created by this user
            raise


@contextmanager
def explain_os_errors(path: Path, what: str, size_bytes: int = 0) -> Iterator[None]:
    """Turn an OSError into a CheckpointError: the path, what failed, why, and a remedy."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be {what}: {_reason(error, size_bytes)}") from error


def _reason(error: OSError, size_bytes: int) -> str:
    why = error.strerror or str(error)
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            what = f", for {format_bytes(size_bytes)}" if size_bytes else ""
            return f"{why}{what}. Free some space and resume."
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"{why}. Let this user write there, and resume."
        case errno.ELOOP | errno.ENOTDIR:
            return (
                f"{why}. It is a symbolic link or not a directory; checkpoint.follows_links = "
                "true allows a link to the checkpoints' folder."
            )
    return f"{why}."


def _check_plain(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path}: is not a regular file.")


def _write_all(handle: int, part: Bytes) -> None:
    rest = memoryview(part).cast("B")
    while rest:
        rest = rest[os.write(handle, rest[:WRITE_CHUNK_BYTES]) :]


def _sync(path: Path) -> None:
    handle = os.open(path, _DIRECTORY)
    try:
        sync_directory(handle)
    finally:
        os.close(handle)

"""Writing a file so that there is always a whole one: the new one, or the one before."""

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress


def write_atomically(path: str, *parts: bytes) -> None:
    """Writes through a new file in the same directory, flushed to the disk and then renamed to
    `path`.
    """
    if _is_device_or_pipe(path):
        with open(path, "wb") as stream:
            stream.writelines(parts)
        return
    directory, name = os.path.split(path)
    if not name or os.path.isdir(path):
        raise IsADirectoryError(None, "it is a directory", path)
    place = os.open(directory or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _replace(place, name, parts)
    finally:
        os.close(place)


def write_all(contents: Mapping[str, bytes]) -> None:
    """Writes several files: all of them whole beside those that are there, then their names, so
    that a full disk or a folder that is not to be written to leaves every file as it was.
    """
    with ExitStack() as stack:
        written = []
        for path, content in contents.items():
            new = f"{path}.tally-{secrets.token_hex(8)}.tmp"
            stack.callback(_remove, new)
            with open(new, "xb") as stream:
                os.fchmod(stream.fileno(), stat.S_IMODE(os.stat(path).st_mode))
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            written.append((new, path))
        for new, path in written:
            os.replace(new, path)


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _is_device_or_pipe(path: str) -> bool:
    """`-o /dev/null` and `-o /dev/stdout` are to be written to, not replaced by a file."""
    if os.path.abspath(path).startswith(("/dev/", "/proc/")):
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _replace(place: int, name: str, parts: Iterable[bytes]) -> None:
    # O_EXCL and a name nobody can guess: never follows a link somebody put there. The mode is the
    # final one from the start (0o666 less the umask): reading the umask means changing it, which
    # other threads would see, and who may read the finished file may read it half written.
    new = f".tally-{secrets.token_hex(8)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(new, flags, 0o666, dir_fd=place)
    try:
        with os.fdopen(handle, "wb") as stream:
            _keep_mode(place, name, handle)
            stream.writelines(parts)
            stream.flush()
            os.fsync(handle)
        os.replace(new, name, src_dir_fd=place, dst_dir_fd=place)
    except BaseException:
        os.unlink(new, dir_fd=place)
        raise
    sync_directory(place)


def _keep_mode(place: int, name: str, handle: int) -> None:
    """A file that only its owner may read stays so when it is written again."""
    try:
        before = os.stat(name, dir_fd=place, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISREG(before.st_mode):
        os.fchmod(handle, stat.S_IMODE(before.st_mode))


def sync_directory(place: int) -> None:
    """Make the names in an open directory durable, on file systems that can."""
    try:
        os.fsync(place)
    except OSError as error:
        # Some file systems cannot, and say so; the file itself is on the disk already.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise

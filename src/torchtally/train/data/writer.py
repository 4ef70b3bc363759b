"""Writing token files: under temporary names until all of them are complete.

A crash, a full disk or Ctrl-C leaves the folder as it was: the files are renamed at the end, and
the description that makes them a data set comes last. The names differ from those of the previous
data set, which stays whole until then.
"""

import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedRandom

from torchtally.checkpoints.disk import lock_handle, sync_handle
from torchtally.errors import UsageError
from torchtally.train.data.description import TokenShard
from torchtally.train.data.headers import LLM_C_DTYPES, LLM_C_HEADER, LLM_C_MOST_TOKENS
from torchtally.train.data.token_data import Ids
from torchtally.train.data.token_file import LITTLE_ENDIAN

MAGICS = {dtype: (magic, version) for magic, (version, dtype) in LLM_C_DTYPES.items()}
TEMPORARY = re.compile(r"\.tally-data-[0-9a-f]{16}")
"""Names of files being written."""


def temporary_name() -> str:
    """An unguessable name."""
    return f".tally-data-{secrets.token_hex(8)}"


def dtype_for(vocabulary_size: int) -> str:
    """The narrower dtype of llm.c files that holds every id."""
    return "uint16" if vocabulary_size <= 1 << 16 else "uint32"


def llm_c_header(dtype: str, tokens: int) -> bytes:
    """1024 bytes."""
    return LLM_C_HEADER.pack(*MAGICS[dtype], tokens, *[0] * 253)


class Folder:
    """A folder in which files are written; `commit` gives all of them their final names."""

    def __init__(self, path: str, handle: int) -> None:
        """`handle` is the open folder."""
        self.path = path
        self.is_committed = False
        self._handle = handle
        self._made: dict[str, str] = {}
        """Final names by temporary ones."""
        self._named: list[str] = []
        """Files already renamed, though not valid before the last one is."""

    def create(self, name: str) -> BufferedRandom:
        """Create a file that `commit` will call `name`."""
        new = temporary_name()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(os.path.join(self.path, new), flags, 0o666)
        self._made[new] = name
        return os.fdopen(handle, "w+b")

    def write(self, name: str, content: bytes) -> None:
        """Write a complete, durable file under a temporary name."""
        with self.create(name) as file:
            file.write(content)
            settle(file)

    def commit(self) -> None:
        """Rename every file, in the order of creation.

        The last one makes all of them valid, so the other names are made durable first.
        """
        *others, (last, its_name) = self._made.items()
        for new, name in others:
            self._named.append(name)
            os.replace(os.path.join(self.path, new), os.path.join(self.path, name))
        sync_handle(self._handle)
        os.replace(os.path.join(self.path, last), os.path.join(self.path, its_name))
        self.is_committed = True
        self._made.clear()
        self._named.clear()
        sync_handle(self._handle)

    def discard(self) -> None:
        """Remove everything that was not committed."""
        for name in (*self._made, *self._named):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.path, name))
        self._made.clear()
        self._named.clear()

    def sweep(self) -> None:
        """Remove leftovers of killed processes. Requires the lock."""
        for name in os.listdir(self.path):
            if TEMPORARY.fullmatch(name):
                os.unlink(os.path.join(self.path, name))


@contextmanager
def folder_to_write(path: str) -> Iterator[Folder]:
    """The folder, created if missing and locked. Uncommitted files are removed.

    Raises UsageError for every file system error.
    """
    try:
        os.makedirs(path, exist_ok=True)
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{path}: not a writable folder ({error.strerror}).") from error
    folder = Folder(path, handle)
    try:
        if not lock_handle(handle):
            raise UsageError(f"{path}: another `tally data prepare` is writing there.")
        folder.sweep()
        yield folder
    except OSError as error:
        state = (
            "The new data is whole, but may not survive a power cut."
            if folder.is_committed
            else f"The previous contents of {path} are unchanged."
        )
        raise UsageError(
            f"{error.filename or path}: cannot be written ({error.strerror}). {state}"
        ) from error
    finally:
        folder.discard()
        os.close(handle)


def settle(file: BufferedRandom) -> None:
    """Flush everything written to disk."""
    file.flush()
    os.fsync(file.fileno())


class SplitWriter:
    """Writes ids to llm.c files of limited size: NAME-00000.bin and so on."""

    def __init__(self, folder: Folder, name: str, dtype: str, *, shard_tokens: int) -> None:
        if not 0 < shard_tokens <= LLM_C_MOST_TOKENS:
            raise UsageError(
                f"expected 1 to {LLM_C_MOST_TOKENS} tokens per file, got {shard_tokens}."
            )
        self.shards: list[TokenShard] = []
        self._folder = folder
        self._name = name
        self._dtype = dtype
        self._shard_tokens = shard_tokens
        self._file: BufferedRandom | None = None
        self._tokens = 0

    def add(self, ids: Ids) -> None:
        """Append ids, starting new files as needed."""
        rest = ids.astype(LITTLE_ENDIAN[self._dtype])
        while len(rest):
            file = self._file or self._begin()
            fitting = rest[: self._shard_tokens - self._tokens]
            file.write(fitting.tobytes())
            self._tokens += len(fitting)
            rest = rest[len(fitting) :]
            if self._tokens == self._shard_tokens:
                self.finish()

    def finish(self) -> None:
        """Complete the current file: write its header with the token count."""
        if self._file is None:
            return
        with self._file as file:
            size_bytes = file.tell()
            file.seek(0)
            file.write(llm_c_header(self._dtype, self._tokens))
            settle(file)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self.shards.append(TokenShard(self._next_name(), self._tokens, size_bytes, digest))
        self._file = None

    def close(self) -> None:
        """Close the current file, incomplete."""
        if self._file is not None:
            self._file.close()

    def _begin(self) -> BufferedRandom:
        self._file = self._folder.create(self._next_name())
        self._file.write(llm_c_header(self._dtype, 0))
        self._tokens = 0
        return self._file

    def _next_name(self) -> str:
        return f"{self._name}-{len(self.shards):05}.bin"

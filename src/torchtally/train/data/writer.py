"""Writing a data set beside another, which stays whole until the new one is.

Names differ from those of the other: shards alternate between two series, train-00000.bin, then
train-b-00000.bin, and back. The description that makes them a data set comes last, by a rename, so
a crash, a full disk or Ctrl-C leaves what was there.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedRandom
from pathlib import Path

from torchtally.checkpoints.disk import lock_handle
from torchtally.errors import UsageError
from torchtally.files.atomic import sync_directory
from torchtally.train.data.description import BYTE_TOKENIZER, Description, TokenShard
from torchtally.train.data.headers import LLM_C_DTYPES, LLM_C_HEADER, LLM_C_MOST_TOKENS
from torchtally.train.data.token_data import Ids
from torchtally.train.data.token_file import LITTLE_ENDIAN

MAGICS = {dtype: (magic, version) for magic, (version, dtype) in LLM_C_DTYPES.items()}
SHARD = re.compile(r"(train|validation)(-b)?-\d{5,}\.bin")
SERIES = ("", "-b")
TOKENIZERS = ("tokenizer.json", "tokenizer-b.json")
UNFINISHED, SPOOLED = ".tally-data-new", ".tally-data-stdin"
"""A file before its rename, and standard input."""
NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def dtype_for(vocabulary_size: int) -> str:
    """The narrower dtype of llm.c files that holds every id."""
    return "uint16" if vocabulary_size <= 1 << 16 else "uint32"


def llm_c_header(dtype: str, tokens: int) -> bytes:
    """1024 bytes."""
    return LLM_C_HEADER.pack(*MAGICS[dtype], tokens, *[0] * 253)


def names_in(description: Description | None) -> set[str]:
    """All files named by a description."""
    if description is None:
        return set()
    return description.shard_names | {description.tokenizer} - {BYTE_TOKENIZER}


def free_series(before: Description | None) -> str:
    """The suffix of split names that the old shards do not use."""
    used = {match[2] or "" for name in names_in(before) if (match := SHARD.fullmatch(name))}
    return next(series for series in SERIES if series not in used)


class Folder:
    """A locked folder to which the files of a data set are written."""

    def __init__(self, path: str, handle: int) -> None:
        """`handle` is the open folder."""
        self.path = path
        self.is_committed = False
        self._handle = handle
        self._created: list[str] = []

    def create(self, name: str) -> BufferedRandom:
        """A new file."""
        handle = os.open(self._at(name), NEW_FILE, 0o666)
        self._created.append(name)
        return os.fdopen(handle, "w+b")

    def place(self, name: str, content: bytes) -> None:
        """Write a whole file, or replace one; the names before it are durable by then."""
        with self.create(UNFINISHED) as file:
            file.write(content)
            settle(file)
        sync_directory(self._handle)
        os.replace(self._at(UNFINISHED), self._at(name))
        self._created[-1] = name

    def place_tokenizer(self, content: str, before: Description | None) -> str:
        """Write it, unless the old data set has the same; its name."""
        theirs = "" if before is None else before.tokenizer
        with suppress(OSError):
            if theirs in TOKENIZERS and Path(self._at(theirs)).read_bytes() == content.encode():
                return theirs
        name = next(name for name in TOKENIZERS if name != theirs)
        self.place(name, content.encode())
        return name

    def commit(self, name: str, content: bytes) -> None:
        """Write the file that makes all others valid."""
        self.place(name, content)
        self.is_committed = True
        self._created.clear()
        sync_directory(self._handle)

    def discard(self) -> None:
        """Remove everything that was not committed."""
        for name in self._created:
            with suppress(FileNotFoundError):
                os.unlink(self._at(name))

    def remove_others(self, before: Description | None, now: Description | None) -> None:
        """Remove the files of `before`, and shards left by a killed process, but not those of
        `now`.
        """
        strays = {name for name in os.listdir(self.path) if SHARD.fullmatch(name)}
        for name in sorted((names_in(before) | strays) - names_in(now)):
            with suppress(FileNotFoundError):
                os.unlink(self._at(name))

    def _at(self, name: str) -> str:
        return os.path.join(self.path, name)


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
        for name in (UNFINISHED, SPOOLED):  # of a process that was killed
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(path, name))
        yield folder
    except OSError as error:
        state = (
            "The new data is whole, but may not survive a power cut, or files of the old are left."
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

"""One file of token ids as its header describes it, and low-level reads of it."""

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from jaxtyping import Integer

from torchtally.checkpoints.closing import Closing
from torchtally.errors import UsageError

LITTLE_ENDIAN = {
    "uint8": "u1",
    "int8": "i1",
    "uint16": "<u2",
    "int16": "<i2",
    "uint32": "<u4",
    "int32": "<i4",
    "uint64": "<u8",
    "int64": "<i8",
}
"""Dtypes of token ids, and NumPy's codes for them. All formats are little-endian."""


Ids = Integer[np.ndarray, "..."]


class Format(StrEnum):
    RAW = "raw"
    """Ids only: nanoGPT's .bin, OLMo's headerless .npy."""
    LLM_C = "llm.c"
    """256 x int32 before the ids: llm.c, modded-nanogpt, `tally data prepare`."""
    NPY = "npy"
    MEGATRON = "megatron"
    """Ids in .bin, documents in the .idx beside it."""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Position of the token ids of one file. Its creator has verified it against the file."""

    path: str
    format: Format
    dtype: str
    """A key of LITTLE_ENDIAN."""
    tokens: int
    offset_bytes: int = 0
    """Offset of the first id."""
    documents: int | None = None
    """None if the format does not count them."""
    is_masked: bool = False
    """Whether an id below zero is the token ~id, which is read and not predicted."""

    @property
    def token_bytes(self) -> int:
        """The size of one id."""
        return self.numpy_dtype.itemsize

    @property
    def numpy_dtype(self) -> "np.dtype[Any]":
        return np.dtype(LITTLE_ENDIAN[self.dtype])

    @property
    def end_bytes(self) -> int:
        """The end of the last id: the file must not be smaller than this while it is read."""
        return self.offset_bytes + self.tokens * self.token_bytes

    def byte_of(self, token: int) -> int:
        """The offset of the id with this index."""
        return self.offset_bytes + token * self.token_bytes


def tokens_of(ids: Ids) -> Ids:
    """The tokens of ids, where those below zero are masked targets: ~id."""
    return np.where(ids < 0, ~ids, ids)


class OpenFile(Closing):
    """A regular file, open for reading. Every error is a UsageError."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            # Without O_NONBLOCK, opening a FIFO would wait for a writer; its type is checked next.
            self.handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"{path}: cannot be opened ({reason}).") from error
        if not stat.S_ISREG(os.fstat(self.handle).st_mode):
            self.close()
            raise UsageError(f"{path}: not a regular file. Name the token files one by one.")

    @property
    def size_bytes(self) -> int:
        """The present size."""
        return os.fstat(self.handle).st_size

    def read(self, begin: int, size_bytes: int) -> bytes:
        """These bytes; fewer only at the end of the file."""
        with self._explain_errors(begin):
            return os.pread(self.handle, size_bytes, begin)

    def read_into(self, buffer: memoryview, begin: int) -> int:
        """Fill the buffer from this byte on; how many bytes there were."""
        with self._explain_errors(begin):
            return os.preadv(self.handle, [buffer], begin)

    def close(self) -> None:
        if self.handle >= 0:
            os.close(self.handle)
        self.handle = -1

    @contextmanager
    def _explain_errors(self, byte: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UsageError(
                f"{self.path}: byte {byte}: cannot be read ({error.strerror}). Check the disk, or "
                "use another copy of the file."
            ) from error


def read_beginning(path: str, size_bytes: int) -> tuple[bytes, int]:
    """(the first bytes of a file, its size). Raises UsageError."""
    with OpenFile(path) as opened:
        return opened.read(0, size_bytes), opened.size_bytes


def check_size(file: TokenFile, opened: OpenFile) -> None:
    """Raise UsageError if the file has shrunk since its header was read."""
    found_bytes = opened.size_bytes
    if found_bytes < file.end_bytes:
        raise UsageError(
            f"{file.path}: byte {found_bytes}: truncated here, "
            f"{file.end_bytes - found_bytes} bytes short of the {file.tokens} tokens it had when "
            "it was opened. Replace data files by renaming new ones into place."
        )


def map_tokens(file: TokenFile, opened: OpenFile) -> Integer[np.ndarray, " tokens"]:
    """The ids as a memory map of the file, which lives as long as the array.

    One map serves a whole training. The resident memory shown by `ps` grows up to the size of the
    file, because mapped pages count towards the process. They are clean page cache, the first to be
    reclaimed, so remapping for every batch, as is often done against a "leak", frees nothing.
    """
    check_size(file, opened)
    whole = mmap.mmap(opened.handle, file.end_bytes, access=mmap.ACCESS_READ)
    return np.frombuffer(whole, file.numpy_dtype, file.tokens, file.offset_bytes)

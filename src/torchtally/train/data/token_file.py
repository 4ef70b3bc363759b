"""One file of token ids as its header describes it, and the numbers in it without reading them."""

import mmap
import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from jaxtyping import Integer

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
"""The dtypes that token ids come in, and how NumPy spells them. All formats are little-endian."""


class Format(StrEnum):
    RAW = "raw"
    """Ids and nothing else: nanoGPT's .bin, OLMo's .npy that is none."""
    LLM_C = "llm.c"
    """256 x int32 before the ids: llm.c, modded-nanogpt, `tally data prepare`."""
    NPY = "npy"
    MEGATRON = "megatron"
    """Ids in .bin, documents in the .idx beside it."""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Where the token ids of one file are. Whoever makes one has compared it with the file."""

    path: str
    format: Format
    dtype: str
    """A key of LITTLE_ENDIAN."""
    tokens: int
    offset_bytes: int = 0
    """Where the first id begins."""
    documents: int | None = None
    """None where the format does not count them."""

    @property
    def token_bytes(self) -> int:
        """Of one id."""
        return self.numpy_dtype.itemsize

    @property
    def numpy_dtype(self) -> "np.dtype[Any]":
        return np.dtype(LITTLE_ENDIAN[self.dtype])

    @property
    def end_bytes(self) -> int:
        """Where the last id ends. The file is this large, and never smaller while it is read."""
        return self.offset_bytes + self.tokens * self.token_bytes

    def byte_of(self, token: int) -> int:
        """Where the id of this number begins."""
        return self.offset_bytes + token * self.token_bytes


def open_file(path: str) -> int:
    """A descriptor of a regular file, to read. Raises UsageError where there is none."""
    try:
        # Opening a pipe would wait for its writer; what it is, is asked right afterwards.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path}: cannot be opened ({reason}).") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise UsageError(f"{path}: not a regular file. Name the files of token ids one by one.")
    return handle


def read_beginning(path: str, size_bytes: int) -> tuple[bytes, int]:
    """(the first bytes of a file, the size of all of it). Raises UsageError."""
    handle = open_file(path)
    try:
        return read_bytes(path, handle, 0, size_bytes), os.fstat(handle).st_size
    finally:
        os.close(handle)


def read_bytes(path: str, handle: int, begin: int, size_bytes: int) -> bytes:
    """These bytes of an open file; fewer only where it ends. Raises UsageError."""
    try:
        return os.pread(handle, size_bytes, begin)
    except OSError as error:
        raise unreadable_error(path, begin, error) from error


def unreadable_error(path: str, byte: int, error: OSError) -> UsageError:
    """What to raise where a read of an open file failed."""
    return UsageError(
        f"{path}: byte {byte}: cannot be read ({error.strerror}). Check the disk, or use another "
        "copy of the file."
    )


def check_size(file: TokenFile, handle: int) -> None:
    """Raise UsageError if the file has become smaller than it was when its header was read."""
    found_bytes = os.fstat(handle).st_size
    if found_bytes < file.end_bytes:
        raise UsageError(
            f"{file.path}: byte {found_bytes}: ends here now, {file.end_bytes - found_bytes} bytes "
            f"short of the {file.tokens} tokens it had when it was opened. Something truncates it "
            "while it is read: replace data files by renaming new ones into place."
        )


def map_tokens(file: TokenFile, handle: int) -> Integer[np.ndarray, " tokens"]:
    """The ids by a memory map of the file, which lives as long as the array.

    One map serves a whole training. The resident memory that `ps` shows grows with it up to the
    size of the file: pages read are counted to whoever maps them. They are the system's file
    cache, unmodified and first to go when memory is wanted, so mapping anew for every batch, as
    is often done against a "leak", frees nothing; it only has the pages counted elsewhere.
    """
    check_size(file, handle)
    whole = mmap.mmap(handle, file.end_bytes, access=mmap.ACCESS_READ)
    return np.frombuffer(whole, file.numpy_dtype, file.tokens, file.offset_bytes)

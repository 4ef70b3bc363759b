"""Several token files as windows: runs of tokens, each token but the first a target.

    S  tokens a model sees at once (the sequence)      S + 1  tokens of a window

A window lies within one file: windows across two files would join unrelated texts and need two
reads. The cost is a remainder of fewer than S tokens per file. Within a file windows do cross ends
of documents.

Windows are numbered across all files. With a stride of S an epoch has every target once; with a
stride of 1 a window begins at every token.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from enum import StrEnum
from typing import Any

import numpy as np
from jaxtyping import Int64, Integer

from torchtally.checkpoints.closing import Closing
from torchtally.errors import UsageError
from torchtally.train.data.token_file import (
    LITTLE_ENDIAN,
    OpenFile,
    TokenFile,
    check_size,
    map_tokens,
    tokens_of,
)

Ids = Integer[np.ndarray, " tokens"]


class Read(StrEnum):
    """How the bytes of a file are read."""

    MAP = "map"
    """Memory map: fastest, about 500 million tokens per second. The size is checked before each
    read, so truncation is an error. Known limit: a file truncated *during* a read (less than a
    millisecond), stale sizes of a network file system, and disk failures end the process with
    SIGBUS; faulthandler then shows the place but not the file."""
    COPY = "copy"
    """preads into own memory: a third of the speed, less than a thousandth of any training step.
    Whatever happens to the file is an error, never a signal. For network file systems, and for
    data that others may truncate."""


class _Windows(Closing):
    """An open file and its windows."""

    def __init__(
        self, file: TokenFile, read: Read, width: int, vocabulary_size: int | None
    ) -> None:
        self.file = file
        self._width = width
        self._vocabulary_size = vocabulary_size
        self._windows: Integer[np.ndarray, "starts width"] | None = None
        with ExitStack() as stack:
            self._opened = stack.enter_context(OpenFile(file.path))
            check_size(file, self._opened)
            if read is Read.MAP:
                tokens = map_tokens(file, self._opened)
                self._windows = np.lib.stride_tricks.sliding_window_view(tokens, width)
            stack.pop_all()

    def close(self) -> None:
        self._windows = None
        self._opened.close()

    def take(self, starts: Int64[np.ndarray, " rows"]) -> Integer[np.ndarray, "rows width"]:
        """The windows starting at these tokens."""
        if self._windows is None:
            rows = self._copy(starts)
        else:
            check_size(self.file, self._opened)
            rows = self._windows[starts]
        if self._vocabulary_size is not None:
            tokens = tokens_of(rows) if self.file.is_masked else rows
            check_ids(self.file, starts, tokens, self._vocabulary_size)
        return rows

    def _copy(self, starts: Int64[np.ndarray, " rows"]) -> Integer[np.ndarray, "rows width"]:
        rows = np.empty((len(starts), self._width), self.file.numpy_dtype)
        for row, start in zip(rows, starts.tolist(), strict=True):
            at_byte = self.file.byte_of(start)
            read_bytes = self._opened.read_into(row.data, at_byte)
            if read_bytes < row.nbytes:
                raise cut_short_error(self.file, self._opened, at_byte + read_bytes)
        return rows


class TokenData(Closing):
    """Token files, opened once. Close it, or use it as a context manager.

    Raises UsageError for a file shorter than a window, and for one that has shrunk. Files renamed
    over or unlinked keep being read; bytes written into one are seen. With a vocabulary size every
    id read is checked: the checks before the first step only sample large files. Thread-safe.
    """

    def __init__(
        self,
        files: Sequence[TokenFile],
        *,
        sequence: int,
        stride: int | None = None,
        read: Read = Read.MAP,
        vocabulary_size: int | None = None,
    ) -> None:
        if not files:
            raise UsageError("No token files. `tally data prepare` creates them from text.")
        if sequence < 1 or (stride is not None and stride < 1):
            raise UsageError(f"sequence {sequence}, stride {stride}: both must be 1 or more.")
        self.files = tuple(files)
        self.sequence = sequence
        self.width = sequence + 1
        self.stride = sequence if stride is None else stride
        for file in self.files:
            check_length(file, sequence)
        counts = [(file.tokens - self.width) // self.stride + 1 for file in self.files]
        self.windows_of_files = counts
        self.windows = sum(counts)
        self._ends: np.ndarray[Any, np.dtype[np.int64]] = np.cumsum(counts, dtype=np.int64)
        self._begins = self._ends - counts
        with ExitStack() as stack:
            self._opened = [
                stack.enter_context(_Windows(file, read, self.width, vocabulary_size))
                for file in self.files
            ]
            self._closing = stack.pop_all()

    @property
    def tokens(self) -> int:
        """Tokens in all files, including those outside of windows."""
        return sum(file.tokens for file in self.files)

    def close(self) -> None:
        self._closing.close()

    def read(
        self, windows: Int64[np.ndarray, " rows"], out: Int64[np.ndarray, "rows width"]
    ) -> None:
        """Fill `out` with these windows, in this order.

        Raises UsageError if a file has shrunk, cannot be read, or has an id outside of the
        vocabulary; IndexError for a window that does not exist.
        """
        if len(windows) and not (windows.min() >= 0 and windows.max() < self.windows):
            raise IndexError(f"a window outside of [0, {self.windows})")
        if len(self._opened) == 1:
            out[...] = self._opened[0].take(windows * self.stride)
            return
        owners = np.searchsorted(self._ends, windows, side="right")
        starts = (windows - self._begins[owners]) * self.stride
        for owner in np.unique(owners).tolist():
            rows = np.flatnonzero(owners == owner)
            out[rows] = self._opened[owner].take(starts[rows])


def check_length(file: TokenFile, sequence: int) -> None:
    """Raise UsageError for a file shorter than one window."""
    if file.tokens <= sequence:
        raise UsageError(
            f"{file.path}: byte {file.end_bytes}: ends after {file.tokens} tokens; a sequence of "
            f"{sequence} needs {sequence + 1}, since the last token is predicted as well. Train "
            "on shorter sequences, or omit the file."
        )


def check_ids(
    file: TokenFile,
    starts: Int64[np.ndarray, " rows"],
    rows: Integer[np.ndarray, "rows width"],
    vocabulary_size: int,
) -> None:
    """Raise UsageError at the first id of these windows that is not in [0, vocabulary_size)."""
    unsigned = LITTLE_ENDIAN[f"uint{8 * file.token_bytes}"]
    # As unsigned numbers negative ids are the largest: one comparison catches both errors.
    end = min(vocabulary_size, int(np.iinfo(file.numpy_dtype).max) + 1)
    ids = rows.view(unsigned)
    if ids.size == 0 or int(ids.max()) < end:
        return
    row, place = divmod(int(np.argmax(ids >= end)), ids.shape[1])
    token = int(starts[row]) + place
    raise UsageError(
        f"{file.path}: byte {file.byte_of(token)}: token {token} is {rows[row, place]}, outside "
        f"of a vocabulary of {vocabulary_size}. It was written after the initial checks, or not "
        "in their sample: `tally data show FILE --vocabulary-size "
        f"{vocabulary_size} --all` checks every token."
    )


def cut_short_error(file: TokenFile, opened: OpenFile, byte: int) -> UsageError:
    """The error for a read that returned too few bytes."""
    try:
        check_size(file, opened)
    except UsageError as error:
        return error
    return UsageError(
        f"{file.path}: byte {byte}: the read ended here, though the file is longer now. It is "
        "being modified: replace data files by renaming new ones into place."
    )


def read_ids(file: TokenFile, opened: OpenFile, first: int, tokens: int) -> Ids:
    """The ids of so many tokens from the first one on. Raises UsageError."""
    wanted_bytes = tokens * file.token_bytes
    content = opened.read(file.byte_of(first), wanted_bytes)
    if len(content) < wanted_bytes:
        raise cut_short_error(file, opened, file.byte_of(first) + len(content))
    ids = np.frombuffer(content, file.numpy_dtype)
    return tokens_of(ids) if file.is_masked else ids

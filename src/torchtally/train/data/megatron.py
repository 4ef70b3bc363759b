"""Megatron's pair of files: token ids in .bin, and the .idx that delimits sequences and documents.

Layout of the .idx, little-endian, from Megatron-Core's `indexed_dataset.py`:

    0    9 bytes   MMIDIDX and two zeros
    9    uint64    version, always 1
    17   uint8     code of the dtype
    18   uint64    S, sequences
    26   uint64    D, entries of the document table: documents plus one
    34   int32[S]  tokens of each sequence
         int64[S]  where each begins in the .bin, in bytes
         int64[D]  the first sequence of each document, and S
         int8[S]   modes, in multimodal data only
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from torchtally.errors import UsageError
from torchtally.train.data.headers import check_token_count
from torchtally.train.data.token_file import (
    LITTLE_ENDIAN,
    Format,
    OpenFile,
    TokenFile,
    read_beginning,
)

MAGIC = b"MMIDIDX\0\0"
HEADER = struct.Struct("<9sQBQQ")
CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
FLOAT_CODES = (6, 7)
"""float64 and float32 (other types in fairseq's older tables): not token ids in any case."""
PIECE = 1 << 18
"""Entries checked at a time: an index of a hundred million must not fill memory."""

Entries = Iterator[tuple[int, Int64[np.ndarray, " entries"]]]


def index_beside(path: str) -> str | None:
    """The .idx of a .bin (or the .idx itself), if it has Megatron's magic number."""
    index = str(Path(path).with_suffix(".idx"))
    if not os.path.isfile(index):
        return None
    return index if read_beginning(index, len(MAGIC))[0] == MAGIC else None


def megatron_file(index: str) -> TokenFile:
    """The .bin described by an .idx, with every entry checked. Raises UsageError."""
    start, index_bytes = read_beginning(index, HEADER.size)
    if len(start) < HEADER.size:
        raise UsageError(f"{index}: byte {len(start)}: the file ends inside its header.")
    magic, version, code, sequences, entries = HEADER.unpack(start)
    if magic != MAGIC or version != 1:
        raise UsageError(f"{index}: byte 0: not a Megatron index of version 1.")
    if code not in CODES:
        kind = "floating-point numbers" if code in FLOAT_CODES else "unknown"
        raise UsageError(
            f"{index}: byte 17: dtype code {code} ({kind}) is not a dtype of token ids."
        )
    plain_bytes = HEADER.size + 12 * sequences + 8 * entries
    if index_bytes not in (plain_bytes, plain_bytes + sequences):
        raise UsageError(
            f"{index}: byte 18: {sequences} sequences and {entries} document entries take "
            f"{plain_bytes} bytes; the file has {index_bytes}. Copy or create it again."
        )
    with OpenFile(index) as opened:
        token_bytes = np.dtype(LITTLE_ENDIAN[CODES[code]]).itemsize
        tokens = _check_sequences(opened, sequences, token_bytes)
        _check_documents(opened, sequences, entries)
    path = str(Path(index).with_suffix(".bin"))
    _, size_bytes = read_beginning(path, 0)
    file = TokenFile(path, Format.MEGATRON, CODES[code], tokens, documents=max(entries - 1, 0))
    return check_token_count(file, size_bytes, f"its index {index}")


def _check_sequences(opened: OpenFile, sequences: int, token_bytes: int) -> int:
    """The number of tokens, if the sequences fill the .bin back to back as Megatron writes them.

    The .bin is then one contiguous run of tokens, which is how it is read here.
    """
    lengths_at, end_bytes = HEADER.size, 0
    begins_at = lengths_at + 4 * sequences
    pointers = _pieces(opened, begins_at, sequences, "<i8")
    for first, lengths in _pieces(opened, lengths_at, sequences, "<i4"):
        _, begins = next(pointers)
        if lengths.min() < 0:
            at = first + int(np.argmax(lengths < 0))
            raise UsageError(
                f"{opened.path}: byte {lengths_at + 4 * at}: sequence {at} has "
                f"{lengths[at - first]} tokens. The index is damaged: create it again."
            )
        ends = end_bytes + np.cumsum(lengths) * token_bytes
        expected = np.concatenate(([end_bytes], ends[:-1]))
        if (begins != expected).any():
            at = first + int(np.argmax(begins != expected))
            raise UsageError(
                f"{opened.path}: byte {begins_at + 8 * at}: sequence {at} begins at byte "
                f"{begins[at - first]} of the .bin instead of {expected[at - first]}, the end of "
                "the one before. It is damaged or of another .bin: create it again."
            )
        end_bytes = int(ends[-1])
    return end_bytes // token_bytes


def _check_documents(opened: OpenFile, sequences: int, entries: int) -> None:
    documents_at, before = HEADER.size + 12 * sequences, 0
    for first, starts in _pieces(opened, documents_at, entries, "<i8"):
        wrong = (np.diff(starts, prepend=before) < 0) | (starts < 0) | (starts > sequences)
        if wrong.any():
            at = first + int(np.argmax(wrong))
            raise UsageError(
                f"{opened.path}: byte {documents_at + 8 * at}: document {at} begins with sequence "
                f"{starts[at - first]} of {sequences}, out of order. The index is damaged: create "
                "it again."
            )
        before = int(starts[-1])


def _pieces(opened: OpenFile, begin: int, count: int, code: str) -> Entries:
    """(index of the first, entries), a limited number at a time."""
    dtype: np.dtype[Any] = np.dtype(code)
    for first in range(0, count, PIECE):
        wanted_bytes = min(PIECE, count - first) * dtype.itemsize
        at = begin + first * dtype.itemsize
        read = opened.read(at, wanted_bytes)
        if len(read) < wanted_bytes:
            raise UsageError(f"{opened.path}: byte {at + len(read)}: truncated while it was read.")
        yield first, np.frombuffer(read, dtype).astype(np.int64)

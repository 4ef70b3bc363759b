"""Checks token ids against the vocabulary before the first step, in a sample or in full.

A file of the wrong dtype or byte order reads without error and trains to nonsense; an id beyond the
vocabulary is a device-side assert on a GPU that does not name the file.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from torchtally.errors import UsageError
from torchtally.train.data.token_data import Ids, read_ids
from torchtally.train.data.token_file import Format, OpenFile, TokenFile

STRETCH = 4096
"""Tokens read per place: few enough to see many places, enough for a disk read."""
SHARE = 0.01
LEAST_HALVES = 64
"""Ids from which on a pattern is not chance."""
LEAST_STRETCHES = 64
"""A quarter of a million tokens take no time: small files are checked in full."""
MOST_STRETCHES = 1 << 14
"""Per file: 64 Mi tokens, so that terabytes do not delay the first step."""


def check_tokens(
    files: Sequence[TokenFile], *, vocabulary_size: int, seed: int, is_whole: bool = False
) -> int:
    """How many tokens were checked: 1 % of each file at random, its start and its end; small files
    in full.

    `is_whole` checks all. Raises UsageError with file and byte for the first id outside of
    [0, vocabulary_size).
    """
    looked_at = 0
    for number, file in enumerate(files):
        seen = low = high = 0
        for first, ids in _read(file, _places(file, (seed, number), is_whole=is_whole)):
            if int(ids.max()) >= vocabulary_size or int(ids.min()) < 0:
                raise UsageError(_complaint(file, first, ids, vocabulary_size))
            seen += len(ids)  # stretches begin at even indices
            low, high = max(low, int(ids[::2].max())), max(high, int(ids[1::2].max(initial=0)))
        looked_at += seen
        # Where the vocabulary fits a narrow dtype, nothing but this shows the halves of wider ids.
        most = vocabulary_size >> (8 * file.token_bytes)
        are_halves = seen >= LEAST_HALVES and high <= most < low
        if are_halves and file.format is Format.RAW and file.tokens % 2 == 0:
            raise UsageError(
                f"{file.path}: byte {file.byte_of(1)}: every second id is at most {most}: "
                f"these look like {16 * file.token_bytes}-bit ids read as {file.dtype}. "
                f"Use --dtype uint{16 * file.token_bytes}."
            )
    return looked_at


def _read(file: TokenFile, places: Iterable[int]) -> Iterator[tuple[int, Ids]]:
    """(index of the first token, ids) of the stretches at these places."""
    with OpenFile(file.path) as opened:
        for first in places:
            yield first, read_ids(file, opened, first, min(STRETCH, file.tokens - first))


def _places(file: TokenFile, seed: tuple[int, int], *, is_whole: bool) -> Iterable[int]:
    """Beginnings of the stretches to check: all of them, or the first, the last, and a random one
    in each of equal parts between.
    """
    if is_whole:
        return range(0, file.tokens, STRETCH)
    stretch_count = -(-file.tokens // STRETCH)
    parts = max(math.ceil(stretch_count * SHARE), min(LEAST_STRETCHES, stretch_count))
    parts = min(parts, MOST_STRETCHES)
    edges = np.linspace(0, stretch_count, parts + 1).astype(np.int64)
    chosen = np.random.default_rng(seed).integers(edges[:-1], np.maximum(edges[1:], edges[:-1] + 1))
    return (STRETCH * number for number in sorted({0, stretch_count - 1, *chosen.tolist()}))


def _complaint(file: TokenFile, first: int, ids: Ids, vocabulary_size: int) -> str:
    wide = ids.astype(object) if ids.dtype == np.uint64 else ids.astype(np.int64)
    at = int(np.argmax((wide < 0) | (wide >= vocabulary_size)))
    return (
        f"{file.path}: byte {file.byte_of(first + at)}: token {first + at} is {wide[at]}, "
        f"outside of a vocabulary of {vocabulary_size}. {_suspicion(file, ids, vocabulary_size)}"
    )


def _suspicion(file: TokenFile, ids: Ids, vocabulary_size: int) -> str:
    """The probable cause, and a remedy."""
    if file.token_bytes > 1 and _is_below(ids.byteswap(), vocabulary_size):
        return (
            "With bytes swapped all ids fit: it looks big-endian. Rewrite it as "
            f"little-endian: numpy.fromfile(PATH, '>u{file.token_bytes}')."
        )
    narrow, wide = f"uint{4 * file.token_bytes}", f"uint{16 * file.token_bytes}"
    if file.token_bytes == 4 and _is_below(ids.view("<u2"), vocabulary_size):
        return f"Read as {narrow} all ids fit: use --dtype {narrow}."
    if file.token_bytes == 2 and _is_below(ids[: len(ids) // 2 * 2].view("<u4"), vocabulary_size):
        return f"Read as {wide} all ids fit: use --dtype {wide}."
    return (
        "Use the vocabulary size that the text was tokenized with, or tokenize it again; "
        "ids of a vocabulary above 65536 do not fit uint16."
    )


def _is_below(ids: Ids, vocabulary_size: int) -> bool:
    return len(ids) > 0 and bool(ids.max() < vocabulary_size and ids.min() >= 0)


def examine(
    file: TokenFile, vocabulary_size: int | None = None, *, is_whole: bool = False
) -> dict[str, Any]:
    """What a file holds, by the names that reports have. Raises UsageError for an id outside of the
    vocabulary.
    """
    if vocabulary_size is not None:
        check_tokens([file], vocabulary_size=vocabulary_size, seed=0, is_whole=is_whole)
    ranges = [
        (len(ids), int(ids.min()), int(ids.max()))
        for _, ids in _read(file, _places(file, (0, 0), is_whole=is_whole))
    ]
    tokens, least, greatest = zip(*ranges, strict=True)
    return {
        "path": file.path,
        "format": file.format.value,
        "dtype": file.dtype,
        "tokens": file.tokens,
        "token_bytes": file.tokens * file.token_bytes,
        "offset_bytes": file.offset_bytes,
        "documents": file.documents,
        "tokens_looked_at": sum(tokens),
        "least_token": min(least),
        "greatest_token": max(greatest),
    }

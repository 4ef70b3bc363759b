"""Are these the token ids of this vocabulary? Asked before the first step, of a part or of all.

A file with the wrong dtype, or of the other byte order, reads without an error and trains to
nonsense; an id beyond the vocabulary ends a GPU's process without saying where it came from.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from torchtally.errors import UsageError
from torchtally.train.data.token_data import Ids, stretches
from torchtally.train.data.token_file import Format, TokenFile, open_file

STRETCH = 4096
"""Tokens looked at in one place: few enough to see many places, enough for a disk's read."""
SHARE = 0.01
LEAST_HALVES = 64
"""Ids by which a pattern is not chance."""
LEAST_STRETCHES = 64
"""A quarter of a million tokens take no time: a small file is looked at whole."""
MOST_STRETCHES = 1 << 14
"""Of one file: 64 Mi tokens, so that terabytes do not hold up the first step."""


@dataclass(frozen=True, slots=True)
class Extremes:
    """Of the ids that were looked at."""

    tokens: int
    """How many these were."""
    least: int
    most: int


def check_tokens(
    files: Sequence[TokenFile], *, vocabulary_size: int, seed: int, is_whole: bool = False
) -> int:
    """How many tokens were looked at: 1 % of each file at random, its first and its last; of small
    files all.

    `is_whole` looks at all. Raises UsageError at the first id that is not in [0, vocabulary_size),
    with its file and byte.
    """
    looked_at = 0
    for number, file in enumerate(files):
        places = _all_places(file) if is_whole else _sample(file, (seed, number))
        halves = _Halves(vocabulary_size >> (8 * file.token_bytes))
        for first, ids in _read(file, places):
            halves.see(ids)
            if int(ids.max()) >= vocabulary_size or int(ids.min()) < 0:
                raise UsageError(_complaint(file, first, ids, vocabulary_size))
            looked_at += len(ids)
        if file.format is Format.RAW and file.tokens % 2 == 0 and halves.are_likely:
            raise UsageError(
                f"{file.path}: byte {file.byte_of(1)}: every second id is at most {halves.most}: "
                f"these seem to be ids of {16 * file.token_bytes} bits, read as {file.dtype}. "
                f"Give --dtype uint{16 * file.token_bytes}."
            )
    return looked_at


class _Halves:
    """Whether ids look like the low and the high halves of wider ids: the high ones are all small.

    Nothing else shows it where the vocabulary fits the narrow dtype: all of them are below it.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        """A high half can be."""
        self._seen = 0
        self._is_high_small = True
        self._is_low_large = False

    def see(self, ids: Ids) -> None:
        """A stretch that begins at an even place."""
        low, high = ids[::2], ids[1::2]
        self._seen += len(ids)
        self._is_high_small = self._is_high_small and bool((high <= self.most).all())
        self._is_low_large = self._is_low_large or bool((low > self.most).any())

    @property
    def are_likely(self) -> bool:
        return self._seen >= LEAST_HALVES and self._is_high_small and self._is_low_large


def extremes(file: TokenFile, *, seed: int, is_whole: bool = False) -> Extremes:
    """The least and the greatest id of a sample as above, or of all. Raises UsageError."""
    extremes_by_stretch = [
        (len(ids), int(ids.min()), int(ids.max()))
        for _, ids in _read(file, _all_places(file) if is_whole else _sample(file, (seed, 0)))
    ]
    tokens, least, most = zip(*extremes_by_stretch, strict=True)
    return Extremes(sum(tokens), min(least), max(most))


def _read(file: TokenFile, places: Iterator[int]) -> Iterator[tuple[int, Ids]]:
    """(number of the first token, ids) of the stretches that begin at these places."""
    handle = open_file(file.path)
    try:
        for first in places:
            count = min(STRETCH, file.tokens - first)
            for ids in stretches(file, handle, [(first, count)]):
                yield first, ids
    finally:
        os.close(handle)


def _all_places(file: TokenFile) -> Iterator[int]:
    return iter(range(0, file.tokens, STRETCH))


def _sample(file: TokenFile, seed: tuple[int, int]) -> Iterator[int]:
    """Where to look: the beginning, the end, and at random between, in the order of the file.

    One place at random in each of equal parts: no large part of a file is left out.
    """
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
        f"{file.path}: byte {file.byte_of(first + at)}: token {first + at} is {wide[at]}, not an "
        f"id of a vocabulary of {vocabulary_size}. {_suspicion(file, ids, vocabulary_size)}"
    )


def _suspicion(file: TokenFile, ids: Ids, vocabulary_size: int) -> str:
    """What is probably wrong with the file, and what to do."""
    if file.token_bytes > 1 and _is_below(ids.byteswap(), vocabulary_size):
        return (
            "With its bytes swapped all are: it seems to be big-endian. Write it again as "
            f"little-endian: numpy.fromfile(PATH, '>u{file.token_bytes}')."
        )
    narrow, wide = f"uint{4 * file.token_bytes}", f"uint{16 * file.token_bytes}"
    if file.token_bytes == 4 and _is_below(ids.view("<u2"), vocabulary_size):
        return f"Read as {narrow} all are: give --dtype {narrow}."
    if file.token_bytes == 2 and _is_below(ids[: len(ids) // 2 * 2].view("<u4"), vocabulary_size):
        return f"Read as {wide} all are: give --dtype {wide}."
    return (
        "Give the size of the vocabulary that the tokens were made with, or make them again; "
        "ids of a vocabulary above 65536 do not fit uint16."
    )


def _is_below(ids: Ids, vocabulary_size: int) -> bool:
    return len(ids) > 0 and bool(ids.max() < vocabulary_size and ids.min() >= 0)


@dataclass(frozen=True, slots=True)
class TokenFileFacts:
    """What a file of tokens holds."""

    path: str
    format: str
    dtype: str
    tokens: int
    token_bytes: int
    """Of all tokens."""
    offset_bytes: int
    documents: int | None
    """None where the format does not count them."""
    tokens_looked_at: int
    least_token: int
    greatest_token: int


def examine(
    file: TokenFile, vocabulary_size: int | None = None, *, is_whole: bool = False
) -> TokenFileFacts:
    """What a file holds. Raises UsageError for an id outside of the vocabulary."""
    if vocabulary_size is not None:
        check_tokens([file], vocabulary_size=vocabulary_size, seed=0, is_whole=is_whole)
    sample = extremes(file, seed=0, is_whole=is_whole)
    return TokenFileFacts(
        path=file.path,
        format=file.format.value,
        dtype=file.dtype,
        tokens=file.tokens,
        token_bytes=file.tokens * file.token_bytes,
        offset_bytes=file.offset_bytes,
        documents=file.documents,
        tokens_looked_at=sample.tokens,
        least_token=sample.least,
        greatest_token=sample.most,
    )

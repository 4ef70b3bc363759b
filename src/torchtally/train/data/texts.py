"""The text to tokenize: which files, and which parts are kept for validation."""

import errno
import glob
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from torchtally.errors import UsageError
from torchtally.train.data.token_file import OpenFile, read_beginning

STDIN = "-"
TEXT_CHUNK_BYTES = 1 << 20
"""Read at a time: a document may be larger than memory."""
LOOKED_AT_BYTES = 8192
"""Checked at the start of files in folders: a file with a zero byte there is not text."""
CUT_LOOK_BYTES = 1 << 16
"""How far after the intended cut a line end is searched."""
LEAST_VALIDATION_DOCUMENTS = 2
NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)

TRAIN, VALIDATION = "train", "validation"


@dataclass(frozen=True, slots=True)
class TextSpan:
    """Bytes [begin, end) of a file: a document, or a part of one."""

    path: str
    begin: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Corpus:
    documents: tuple[TextSpan, ...]
    skipped: int
    """Files in folders that are empty or not text, and skipped."""

    @property
    def size_bytes(self) -> int:
        return sum(document.size_bytes for document in self.documents)


def find_documents(inputs: Sequence[str], *, outside: str) -> Corpus:
    """Files, files in folders, and matches of globs, in order, each once; none below `outside`.

    In folders hidden files and non-text files are skipped; files that are named are taken as they
    are. Raises UsageError for an input that matches nothing.
    """
    documents: dict[str, TextSpan] = {}
    skipped = 0
    for pattern in inputs:
        named = _is_file(pattern)
        paths = [pattern] if named else _paths_of(pattern, os.path.abspath(outside))
        if not paths:
            raise UsageError(f"{pattern}: no such file or folder, and no file matches the pattern.")
        for path in paths:
            start, size_bytes = read_beginning(path, LOOKED_AT_BYTES)
            if size_bytes == 0 or (not named and b"\0" in start):
                skipped += 1
            else:
                documents.setdefault(os.path.abspath(path), TextSpan(path, 0, size_bytes))
    if not documents:
        raise UsageError(f"{' '.join(inputs)}: found no text ({skipped} files are not text).")
    return Corpus(tuple(documents.values()), skipped)


def divide(
    documents: Sequence[TextSpan], *, validation: float, seed: int
) -> Mapping[str, tuple[TextSpan, ...]]:
    """The training and validation spans; validation is about this fraction of all bytes.

    Whole documents are drawn for validation if that gives at least two: a document whose beginning
    was trained on is easier to continue. Otherwise it is the end of each document.
    """
    if not 0 <= validation < 1:
        raise UsageError(f"validation: expected a fraction in [0, 1), got {validation:g}.")
    if validation == 0:
        return {TRAIN: tuple(documents)}
    wanted_bytes = validation * sum(document.size_bytes for document in documents)
    chosen = _draw(documents, wanted_bytes, seed)
    if len(chosen) >= LEAST_VALIDATION_DOCUMENTS:
        cuts = [0 if at in chosen else document.size_bytes for at, document in enumerate(documents)]
    else:
        cuts = [
            _cut(document, round(document.size_bytes * (1 - validation))) for document in documents
        ]
    halves = list(zip(documents, cuts, strict=True))
    return {
        TRAIN: tuple(replace(one, end=cut) for one, cut in halves if cut),
        VALIDATION: tuple(replace(one, begin=cut) for one, cut in halves if cut < one.end),
    }


def chunks(span: TextSpan) -> Iterator[bytes]:
    """The bytes of a span in chunks. Raises UsageError if they cannot be read."""
    with OpenFile(span.path) as file:
        at = span.begin
        while at < span.end:
            chunk = file.read(at, min(TEXT_CHUNK_BYTES, span.end - at))
            if not chunk:
                raise UsageError(
                    f"{span.path}: byte {at}: the file was truncated; it had {span.end} bytes."
                )
            yield chunk
            at += len(chunk)


def _draw(documents: Sequence[TextSpan], wanted_bytes: float, seed: int) -> set[int]:
    """Indices of random documents, as many as fit into these bytes."""
    chosen: set[int] = set()
    for at in np.random.default_rng(seed).permutation(len(documents)).tolist():
        if documents[at].size_bytes <= wanted_bytes:
            chosen.add(at)
            wanted_bytes -= documents[at].size_bytes
    return chosen


def _cut(document: TextSpan, begin: int) -> int:
    """The end of the line that byte `wanted` is in; where lines are long, of its character."""
    with OpenFile(document.path) as file:
        text = file.read(begin, CUT_LOOK_BYTES)
    line_end = text.find(b"\n") + 1
    if line_end and begin + line_end < document.size_bytes:
        return begin + line_end
    in_character = next((at for at, byte in enumerate(text[:4]) if byte & 0xC0 != 0x80), 0)
    return begin + in_character


def _paths_of(pattern: str, outside: str) -> list[str]:
    """Regular files of a folder or a glob, outside of `outside`."""
    paths = _walk(pattern) if os.path.isdir(pattern) else glob.iglob(pattern, recursive=True)
    return sorted(
        path
        for path in paths
        if os.path.commonpath([os.path.abspath(path), outside]) != outside and _is_file(path)
    )


def _is_file(path: str) -> bool:
    """Whether it is the path of a file, not of a folder, a dangling link or a pattern."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except ValueError:
        return False
    except OSError as error:
        if error.errno in NO_FILE:
            return False
        raise UsageError(f"{path}: cannot be accessed ({error.strerror}).") from error


def _walk(folder: str) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise UsageError(f"{error.filename}: cannot be accessed ({error.strerror}).") from error

    for here, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        yield from (os.path.join(here, name) for name in names if not name.startswith("."))

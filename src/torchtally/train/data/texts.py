"""Text to make tokens of: which files, and which stretches of them are kept for validation."""

import errno
import glob
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from torchtally.errors import UsageError
from torchtally.train.data.token_file import open_file, read_beginning, read_bytes

STDIN = "-"
CHUNK_BYTES = 1 << 20
"""Read at a time: a document may be larger than the memory."""
LOOKED_AT_BYTES = 8192
"""Of a file found in a folder: one with a zero byte in them is not text."""
CUT_LOOK_BYTES = 1 << 16
"""How far behind the wanted place of a cut a line may end."""
LEAST_VALIDATION_DOCUMENTS = 2

TRAIN, VALIDATION = "train", "validation"


@dataclass(frozen=True, slots=True)
class TextDocument:
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A stretch of a document: bytes [begin, end)."""

    document: TextDocument
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Corpus:
    documents: tuple[TextDocument, ...]
    skipped: int
    """Files in folders that are empty or not text."""

    @property
    def size_bytes(self) -> int:
        return sum(document.size_bytes for document in self.documents)


def find_documents(inputs: Sequence[str], *, outside: str) -> Corpus:
    """Files, those in folders, those of globs, in order, each once; none below `outside`.

    In folders, hidden files and what is not text are left out; a file that is named is taken as
    it is. Raises UsageError for an input that names nothing.
    """
    documents: dict[str, TextDocument] = {}
    skipped = 0
    for pattern in inputs:
        named = _is_file(pattern)
        paths = [pattern] if named else sorted(_paths_of(pattern, os.path.abspath(outside)))
        if not paths:
            raise UsageError(f"{pattern}: no such file or folder, and no file matches it.")
        for path in paths:
            start, size_bytes = read_beginning(path, LOOKED_AT_BYTES)
            if size_bytes == 0 or (not named and b"\0" in start):
                skipped += 1
            else:
                documents.setdefault(os.path.abspath(path), TextDocument(path, size_bytes))
    if not documents:
        raise UsageError(f"{' '.join(inputs)}: no text in there ({skipped} files are not text).")
    return Corpus(tuple(documents.values()), skipped)


def spool(read: Callable[[int], bytes], path: str) -> None:
    """Standard input into a file: its length must be known before it can be divided."""
    with open(path, "xb") as file:
        while chunk := read(CHUNK_BYTES):
            file.write(chunk)


def divide(
    documents: Sequence[TextDocument], *, validation: float, seed: int
) -> Mapping[str, tuple[TextSpan, ...]]:
    """The spans of training and of validation, about this fraction of all bytes.

    Whole documents, drawn at random, are kept for validation where at least two would be: what a
    model has seen the beginning of is easier to continue. Of fewer documents each one's end is.
    """
    if not 0 <= validation < 1:
        raise UsageError(f"validation {validation:g}: a fraction of all text, 0 or more, below 1.")
    if validation == 0:
        return {TRAIN: tuple(TextSpan(document, 0, document.size_bytes) for document in documents)}
    wanted_bytes = validation * sum(document.size_bytes for document in documents)
    chosen = _draw(documents, wanted_bytes, seed)
    if len(chosen) >= LEAST_VALIDATION_DOCUMENTS:
        kept = [
            TextSpan(document, 0, document.size_bytes)
            for at, document in enumerate(documents)
            if at in chosen
        ]
        rest = [
            TextSpan(document, 0, document.size_bytes)
            for at, document in enumerate(documents)
            if at not in chosen
        ]
    else:
        cuts = [
            _cut(document, round(document.size_bytes * (1 - validation))) for document in documents
        ]
        rest = [TextSpan(document, 0, at) for document, at in zip(documents, cuts, strict=True)]
        kept = [
            TextSpan(document, at, document.size_bytes)
            for document, at in zip(documents, cuts, strict=True)
        ]
    splits = {TRAIN: tuple(rest), VALIDATION: tuple(kept)}
    return {
        name: tuple(span for span in spans if span.end > span.begin)
        for name, spans in splits.items()
    }


def chunks(span: TextSpan) -> Iterator[bytes]:
    """The bytes of a span, some at a time. Raises UsageError where they cannot be read."""
    path = span.document.path
    with os.fdopen(open_file(path), "rb", buffering=0) as file:
        at = span.begin
        while at < span.end:
            read = read_bytes(path, file.fileno(), at, min(CHUNK_BYTES, span.end - at))
            if not read:
                raise UsageError(f"{path}: byte {at}: ends here now; it had {span.end} bytes.")
            yield read
            at += len(read)


def _draw(documents: Sequence[TextDocument], wanted_bytes: float, seed: int) -> set[int]:
    """Documents at random, as many as fit into these bytes."""
    chosen: set[int] = set()
    for at in np.random.default_rng(seed).permutation(len(documents)).tolist():
        if documents[at].size_bytes <= wanted_bytes:
            chosen.add(at)
            wanted_bytes -= documents[at].size_bytes
    return chosen


def _cut(document: TextDocument, begin: int) -> int:
    """The end of the line that byte `wanted` is in; where lines are long, of its character."""
    handle = open_file(document.path)
    try:
        text = read_bytes(document.path, handle, begin, CUT_LOOK_BYTES)
    finally:
        os.close(handle)
    line_end = text.find(b"\n") + 1
    if line_end and begin + line_end < document.size_bytes:
        return begin + line_end
    in_character = next((at for at, byte in enumerate(text[:4]) if byte & 0xC0 != 0x80), 0)
    return begin + in_character


def _paths_of(pattern: str, outside: str) -> Iterator[str]:
    """The regular files of a folder or a glob that are not below `outside`."""
    for path in _walk(pattern) if os.path.isdir(pattern) else glob.iglob(pattern, recursive=True):
        is_outside = os.path.commonpath([os.path.abspath(path), outside]) != outside
        if is_outside and _is_regular(path):
            yield path


def _is_file(path: str) -> bool:
    """Whether a path names a file outright, and not a folder or a pattern."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except PermissionError as error:
        raise UsageError(f"{path}: cannot be looked at ({error.strerror}).") from error
    except (OSError, ValueError):  # a pattern, or nothing
        return False


def _walk(folder: str) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise UsageError(f"{error.filename}: cannot be looked into ({error.strerror}).") from error

    for here, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [folder for folder in folders if not folder.startswith(".")]
        yield from (os.path.join(here, name) for name in names if not name.startswith("."))


def _is_regular(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:  # a link to nothing
        return False
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise UsageError(f"{path}: cannot be looked at ({error.strerror}).") from error

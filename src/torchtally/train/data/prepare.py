"""Tokenizing text into a folder of token files: `tally data prepare`.

The folder then holds `train-00000.bin` and on, `validation-00000.bin` and on, in llm.c's format;
`tokens.json`, which describes them; and `tokenizer.json`, unless tokens are bytes. `writer` has the
names of a data set that replaces another.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from torchtally.errors import UsageError
from torchtally.train.data.description import (
    BYTE_TOKENIZER,
    NAME,
    Description,
    Split,
    TokenShard,
    description_in,
)
from torchtally.train.data.fingerprint import add_samples
from torchtally.train.data.texts import STDIN, TRAIN, TextSpan, chunks, divide, find_documents
from torchtally.train.data.tokenizer import (
    BytePairTokenizer,
    ByteTokenizer,
    Tokenizer,
    tokenizer_text,
    train_byte_pairs,
)
from torchtally.train.data.writer import (
    SPOOLED,
    Folder,
    SplitWriter,
    dtype_for,
    folder_to_write,
    free_series,
)

SHARD_TOKENS = 100_000_000
"""As llm.c shards FineWeb: 200 MB per file."""

ReportProgress = Callable[[str, int, int], None]
"""Called with (activity, bytes done, total bytes)."""


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """The arguments of `tally data prepare`."""

    inputs: tuple[str, ...]
    """Files, folders, globs; "-" is standard input."""
    out: str
    tokenizer: str = BYTE_TOKENIZER
    """BYTE_TOKENIZER or the path of a tokenizer.json."""
    vocabulary_size: int | None = None
    """Train byte-pair encoding on the training text, with this many tokens."""
    end_of_document: str | None = None
    """The token that ends documents, or "none"; default: one of the usual names."""
    validation: float = 0.1
    shard_tokens: int = SHARD_TOKENS
    seed: int = 0
    """Selects the validation documents."""
    is_overwriting: bool = False


@dataclass(frozen=True, slots=True)
class PreparedData:
    description: Description
    text_bytes: int
    skipped: int
    """Files that are not text."""
    replaced: int
    """Characters U+FFFD in the text: usually bytes that were not UTF-8."""


def prepare(request: PrepareRequest, report: ReportProgress = lambda *_: None) -> PreparedData:
    """Create the folder. On UsageError it is unchanged."""
    if request.vocabulary_size is not None and request.tokenizer != BYTE_TOKENIZER:
        raise UsageError(
            "A vocabulary size trains a new tokenizer, while a tokenizer.json has a fixed "
            "size. Give one of the two."
        )
    with ExitStack() as stack:
        folder = stack.enter_context(folder_to_write(request.out))
        before = _existing_description(request)
        folder.remove_others(None, before)
        inputs = stack.enter_context(_with_stdin(request))
        corpus = find_documents(inputs, outside=request.out)
        splits = divide(corpus.documents, validation=request.validation, seed=request.seed)
        tokenizer, content = _tokenizer(request, splits[TRAIN], report)
        description = msgspec.structs.replace(
            _write(request, folder, before, tokenizer, content, splits, report),
            source=_source(corpus.documents),
        )
        # The description last: the replaced data set is valid until it has its name.
        folder.commit(NAME, msgspec.json.format(msgspec.json.encode(description), indent=1))
        folder.remove_others(before, description)
        return PreparedData(description, corpus.size_bytes, corpus.skipped, tokenizer.replaced)


def is_current(request: PrepareRequest) -> bool:
    """Whether the folder has the tokens of the present text. Raises UsageError without text."""
    before = description_in(request.out)
    corpus = find_documents(request.inputs, outside=request.out)
    return before is not None and before.source == _source(corpus.documents)


def _source(documents: Sequence[TextSpan]) -> str:
    digest = hashlib.sha256()
    for document in documents:
        digest.update(f"{document.size_bytes}\n".encode())
        add_samples(digest, document.path, 0, document.size_bytes)
    return digest.hexdigest()


def _existing_description(request: PrepareRequest) -> Description | None:
    """The data set already in the folder. Raises UsageError if it must not be replaced."""
    try:
        before = description_in(request.out)
    except UsageError:
        if request.is_overwriting:  # it is damaged: nothing to lose
            return None
        raise
    if before is not None and not request.is_overwriting:
        raise UsageError(
            f"{request.out}: already has a {NAME}. Use --overwrite to replace its files."
        )
    return before


@contextmanager
def _with_stdin(request: PrepareRequest) -> Iterator[tuple[str, ...]]:
    """The inputs, with standard input spooled to a temporary file."""
    if STDIN not in request.inputs:
        yield request.inputs
        return
    path = os.path.join(request.out, SPOOLED)
    try:
        with open(path, "xb") as file:  # its length must be known to divide it
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield tuple(path if pattern == STDIN else pattern for pattern in request.inputs)
    finally:
        Path(path).unlink(missing_ok=True)


def _tokenizer(
    request: PrepareRequest, spans: Sequence[TextSpan], report: ReportProgress
) -> tuple[Tokenizer, str | None]:
    """The tokenizer, and the text of its tokenizer.json."""
    if request.vocabulary_size is not None:
        documents = _read_reporting(spans, "training the tokenizer", report)
        text = train_byte_pairs(documents, request.vocabulary_size)
        place = "the trained tokenizer"
    elif request.tokenizer == BYTE_TOKENIZER:
        return ByteTokenizer(), None
    else:
        place = request.tokenizer
        text = tokenizer_text(place)
    return BytePairTokenizer(text, place=place, end_of_document=request.end_of_document), text


def _write(
    request: PrepareRequest,
    folder: Folder,
    before: Description | None,
    tokenizer: Tokenizer,
    content: str | None,
    splits: Mapping[str, Sequence[TextSpan]],
    report: ReportProgress,
) -> Description:
    """Write all files, under temporary names."""
    dtype, series = dtype_for(tokenizer.vocabulary_size), free_series(before)
    written_splits = {}
    for name, spans in splits.items():
        writer = SplitWriter(folder, name + series, dtype, shard_tokens=request.shard_tokens)
        shards = _write_split(writer, _read_reporting(spans, name, report), tokenizer)
        tokens = sum(shard.tokens for shard in shards)
        written_splits[name] = Split(tokens, len(spans), shards)
    return Description(
        tokenizer=BYTE_TOKENIZER if content is None else folder.place_tokenizer(content, before),
        vocabulary_size=tokenizer.vocabulary_size,
        end_of_document=tokenizer.end_of_document,
        dtype=dtype,
        splits=written_splits,
    )


def _write_split(
    writer: SplitWriter, documents: Iterator[Iterator[bytes]], tokenizer: Tokenizer
) -> tuple[TokenShard, ...]:
    end = tokenizer.end_of_document
    try:
        for document in documents:
            for ids in tokenizer.encode(document):
                writer.add(ids)
            if end is not None:
                writer.add(np.array([end], np.uint32))
        writer.finish()
    finally:
        writer.close()
    return tuple(writer.shards)


def _read_reporting(
    spans: Sequence[TextSpan], what: str, report: ReportProgress
) -> Iterator[Iterator[bytes]]:
    """The chunks of each span, reporting progress."""
    all_bytes = sum(span.size_bytes for span in spans)
    done_bytes = 0

    def read(span: TextSpan) -> Iterator[bytes]:
        nonlocal done_bytes
        for chunk in chunks(span):
            done_bytes += len(chunk)
            report(what, done_bytes, all_bytes)
            yield chunk

    return (read(span) for span in spans)

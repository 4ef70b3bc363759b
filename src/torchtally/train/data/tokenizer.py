"""Text to token ids and back: bytes, or byte-pair encoding with the package `tokenizers`."""

import codecs
import json
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from torchtally.errors import UsageError, needed_package
from torchtally.files.reading import read_text
from torchtally.train.data.description import BYTE_TOKENIZER, Description
from torchtally.train.data.token_data import Ids

END_NAMES = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")
"""Usual names of the end-of-document token, most common first."""
LEAST_VOCABULARY = 257
"""Every byte and the end-of-document token."""
MOST_BYTES = 256 << 20
"""Of a tokenizer.json; those of a quarter million tokens are 30 MB."""
PIECE_CHARS = 1 << 18
BATCH = 8
"""Pieces encoded at once, by the threads of `tokenizers`."""


class ByteTokenizer:
    """Id = byte, and 256 for the end of a document. Lossless for any bytes."""

    vocabulary_size = 257
    """All ids are below it."""
    end_of_document: int | None = 256
    replaced = 0
    """Invalid UTF-8 replaced by U+FFFD: never."""

    def encode(self, chunks: Iterable[bytes]) -> Iterator[Ids]:
        """The ids of a document given in chunks, without the end-of-document id."""
        return (np.frombuffer(chunk, np.uint8) for chunk in chunks)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; invalid UTF-8 becomes U+FFFD, end-of-document ids nothing."""
        return bytes(token for token in ids if token < 256).decode("utf-8", "replace")


class BytePairTokenizer:
    """A tokenizer.json. Invalid UTF-8 is encoded as U+FFFD and counted.

    Documents are encoded in pieces of a quarter million characters, cut at line ends: only there
    can ids differ from encoding the text at once.
    """

    def __init__(self, text: str, *, place: str, end_of_document: str | None = None) -> None:
        """Reads the text of a tokenizer.json. Raises UsageError if it is invalid."""
        try:
            self._tokenizer: Any = _library().Tokenizer.from_str(text)
        except UsageError:
            raise
        except Exception as error:  # the library raises plain Exceptions
            raise UsageError(f"{place}: not a tokenizer.json ({error}).") from error
        # A file may configure truncation or padding, which would drop or add tokens.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        ids: dict[str, int] = self._tokenizer.get_vocab()
        if not ids:
            raise UsageError(f"{place}: the tokenizer has no tokens.")
        self.vocabulary_size = max(ids.values()) + 1
        self.end_of_document = _end_id(ids, place, end_of_document)
        self.replaced = 0
        """Characters replaced by U+FFFD so far."""

    def encode(self, chunks: Iterable[bytes]) -> Iterator[Ids]:
        """See ByteTokenizer."""
        pieces = _pieces(chunks)
        while batch := list(islice(pieces, BATCH)):
            self.replaced += sum(piece.count("\ufffd") for piece in batch)
            for encoding in self._tokenizer.encode_batch_fast(batch, add_special_tokens=False):
                yield np.array(encoding.ids, np.uint32)

    def decode(self, ids: Iterable[int]) -> str:
        """See ByteTokenizer."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text


Tokenizer = ByteTokenizer | BytePairTokenizer
"""Both have the same attributes and methods."""


def tokenizer_of(text: str, place: str) -> Tokenizer:
    """Tokenizer by the text of a tokenizer.json. Raises UsageError if it is invalid."""
    if text == byte_tokenizer_text():
        return ByteTokenizer()
    try:
        return BytePairTokenizer(text, place=place)
    except UsageError:  # no token with a usual name for the end of a document
        return BytePairTokenizer(text, place=place, end_of_document="none")


def tokenizer_json(folder: str, description: Description) -> str:
    """The text of the tokenizer.json of data, or of one that is like it. Raises UsageError."""
    if description.tokenizer == BYTE_TOKENIZER:
        return byte_tokenizer_text()
    return tokenizer_text(os.path.join(folder, description.tokenizer))


def byte_counts(text: str) -> dict[int, int] | None:
    """Bytes of text that each id of a tokenizer.json stands for, special tokens none; None for one
    that is not byte-level, whose tokens do not say it.
    """
    document = json.loads(text)
    if (document.get("decoder") or {}).get("type") != "ByteLevel":
        return None
    counts = {at: len(token) for token, at in document["model"]["vocab"].items()}
    return counts | {
        added["id"]: 0 if added["special"] else len(added["content"].encode())
        for added in document["added_tokens"]
    }


def byte_tokenizer_text() -> str:
    """A tokenizer.json that encodes as ByteTokenizer does: byte-level BPE without merges.

    Byte-level BPE writes bytes as characters: printable ones of Latin-1 as themselves, the others
    as the characters from U+0100 on (GPT-2's bytes_to_unicode).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    names = [chr(byte if byte in printable else next(others)) for byte in range(256)]
    byte_level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    end = {"id": 256, "content": END_NAMES[0], "special": True, "normalized": False,
           "single_word": False, "lstrip": False, "rstrip": False}  # fmt: skip
    document = {
        "version": "1.0",
        "added_tokens": [end],
        "pre_tokenizer": {"type": "ByteLevel", **byte_level},
        "decoder": {"type": "ByteLevel", **byte_level},
        "model": {
            "type": "BPE",
            "vocab": {name: at for at, name in enumerate(names)},
            "merges": [],
        },
    }
    return json.dumps(document, ensure_ascii=False)


def tokenizer_text(path: str) -> str:
    """The text of a tokenizer.json. Raises UsageError where it cannot be read."""
    return read_text(path, "a tokenizer.json", MOST_BYTES)


def train_byte_pairs(documents: Iterable[Iterable[bytes]], vocabulary_size: int) -> str:
    """Train byte-level byte-pair encoding like GPT-2's; the text of the tokenizer.json.

    Raises UsageError without the package `tokenizers`, or for a vocabulary too small for every
    byte.
    """
    if vocabulary_size < LEAST_VOCABULARY:
        raise UsageError(
            f"a vocabulary of {vocabulary_size} is too small: every byte and the end of a document "
            f"take {LEAST_VOCABULARY}."
        )
    library = _library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        show_progress=False,
        special_tokens=[END_NAMES[0]],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
    )
    texts = (piece for chunks in documents for piece in _pieces(chunks))
    tokenizer.train_from_iterator(texts, trainer=trainer)
    text: str = tokenizer.to_str()
    return text


def _pieces(chunks: Iterable[bytes]) -> Iterator[str]:
    """The text in pieces cut at line ends, unless a line is longer than a piece."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    for chunk in chunks:
        rest += decoder.decode(chunk)
        while len(rest) > PIECE_CHARS:
            end = rest.rfind("\n", 0, PIECE_CHARS) + 1 or PIECE_CHARS
            yield rest[:end]
            rest = rest[end:]
    rest += decoder.decode(b"", final=True)
    if rest:
        yield rest


def _end_id(ids: dict[str, int], place: str, name: str | None) -> int | None:
    """The end-of-document id. Raises UsageError if it is unknown."""
    if name == "none":
        return None
    if name is not None:
        if name not in ids:
            raise UsageError(f"{place}: has no token {name!r}.")
        return ids[name]
    end_name = next((name for name in END_NAMES if name in ids), None)
    if end_name is None:
        raise UsageError(
            f"{place}: no token has a usual name for the end of a document. Name it with "
            "--end-of-document TOKEN, or use --end-of-document none."
        )
    return ids[end_name]


def _library() -> Any:
    what = "Byte-pair encoding"
    return needed_package("tokenizers", what, "bpe", ", or take bytes: --tokenizer byte")

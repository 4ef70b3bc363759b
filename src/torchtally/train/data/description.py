"""`tokens.json`: the description of a folder written by `tally data prepare`.

It is written last, so a folder with one is complete.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torchtally.errors import UsageError
from torchtally.train.data.token_file import LITTLE_ENDIAN, read_beginning

NAME = "tokens.json"
FORMAT = "torchtally tokens"
FORMAT_VERSION = 1
BYTE_TOKENIZER = "byte"
MOST_BYTES = 16 << 20
"""The largest description read: a hundred thousand shards."""


@dataclass(frozen=True, slots=True)
class TokenShard:
    """One file of a split."""

    name: str
    """Relative to the folder of the description."""
    tokens: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Split:
    documents: int
    """How many documents have a part in it."""
    shards: tuple[TokenShard, ...]

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)


@dataclass(frozen=True, slots=True)
class Description:
    tokenizer: str
    """BYTE_TOKENIZER, or the name of a tokenizer.json in the same folder."""
    vocabulary_size: int
    """Ids are below it, the end-of-document id included."""
    end_of_document: int | None
    """The id after every document; None if the tokenizer has none."""
    dtype: str
    splits: Mapping[str, Split] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        splits = {
            name: {"tokens": split.tokens, **asdict(split)} for name, split in self.splits.items()
        }
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            **asdict(self),
            "splits": splits,
        }


def description_in(folder: str) -> Description | None:
    """The description in a folder; None if it has none.

    Raises UsageError if it is damaged, or if the folder cannot be accessed.
    """
    path = os.path.join(folder, NAME)
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UsageError(f"{folder}: cannot be accessed ({error.strerror}).") from error
    return read_description(path)


def dtype_in_description(path: str) -> str | None:
    """The dtype of a file according to the description beside it."""
    description = description_in(os.path.dirname(path))
    names = (
        {shard.name for split in description.splits.values() for shard in split.shards}
        if description
        else ()
    )
    return description.dtype if description and os.path.basename(path) in names else None


def read_description(path: str) -> Description:
    """Raises UsageError if the file is not a description, is damaged, or is of a later version."""
    text, size_bytes = read_beginning(path, MOST_BYTES)
    try:
        document = json.loads(text) if size_bytes <= MOST_BYTES else None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON ({error}). Run `tally data prepare` again.") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(f"{path}: not a description by `tally data prepare` (key 'format').")
    version = document.get("format_version")
    if version != FORMAT_VERSION:
        raise UsageError(
            f"{path}: format_version {version!r}; this torchtally reads {FORMAT_VERSION}. "
            "Update torchtally, or prepare the data again."
        )
    try:
        return _description(document)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{path}: {error} is missing or wrong. Prepare the data again.") from error


def _description(document: Mapping[str, Any]) -> Description:
    end = document["end_of_document"]
    if document["dtype"] not in LITTLE_ENDIAN:
        raise ValueError("'dtype'")
    return Description(
        tokenizer=_name(document["tokenizer"]),
        vocabulary_size=_count(document["vocabulary_size"], "'vocabulary_size'"),
        end_of_document=None if end is None else _count(end, "'end_of_document'"),
        dtype=document["dtype"],
        splits={str(name): _split(split) for name, split in document["splits"].items()},
    )


def _split(document: Mapping[str, Any]) -> Split:
    return Split(
        _count(document["documents"], "'documents'"),
        tuple(
            TokenShard(_name(shard["name"]), _count(shard["tokens"], "'tokens'"),
                  _count(shard["bytes"], "'bytes'"), str(shard["sha256"]))
            for shard in document["shards"]
        ),
    )  # fmt: skip


def _count(value: object, key: str) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(key)
    return value


def _name(value: object) -> str:
    """A bare file name: files lie beside the description and nowhere else."""
    if not isinstance(value, str) or value in ("", ".", "..") or Path(value).name != value:
        raise ValueError("a file's name")
    return value

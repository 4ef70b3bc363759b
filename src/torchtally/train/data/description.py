"""`tokens.json`: the description of a folder written by `tally data prepare`.

It is written last, so a folder with one is complete.
"""

import os
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from torchtally.errors import UsageError
from torchtally.train.data.token_file import LITTLE_ENDIAN, read_beginning

NAME = "tokens.json"
BYTE_TOKENIZER = "byte"
MOST_BYTES = 16 << 20
"""The largest description read: a hundred thousand shards."""

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
FileName = Annotated[str, Meta(pattern=r"\A(?!\.\.?\Z)[^/]+\Z")]
"""A bare name: files lie beside the description and nowhere else."""
Dtype = Annotated[str, Meta(pattern=rf"\A({'|'.join(LITTLE_ENDIAN)})\Z")]


class TokenShard(msgspec.Struct, frozen=True):
    """One file of a split."""

    name: FileName
    """Relative to the folder of the description."""
    tokens: Count
    bytes: Count
    sha256: str


class Split(msgspec.Struct, frozen=True):
    tokens: Count
    documents: Count
    """How many documents have a part in it."""
    shards: tuple[TokenShard, ...]


class Description(msgspec.Struct, frozen=True, tag_field="format", tag="torchtally tokens"):
    tokenizer: FileName
    """BYTE_TOKENIZER, or the name of a tokenizer.json in the same folder."""
    vocabulary_size: Count
    """Ids are below it, the end-of-document id included."""
    end_of_document: Count | None
    """The id after every document; None if the tokenizer has none."""
    dtype: Dtype
    splits: dict[str, Split]
    format_version: Literal[1] = 1
    source: str | None = None
    """Fingerprint of the text; None in folders of earlier versions."""

    @property
    def shard_names(self) -> set[str]:
        return {shard.name for split in self.splits.values() for shard in split.shards}


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
    is_listed = description is not None and os.path.basename(path) in description.shard_names
    return description.dtype if description is not None and is_listed else None


def read_description(path: str) -> Description:
    """Raises UsageError if the file is not a description, is damaged, or is of a later version."""
    text, _ = read_beginning(path, MOST_BYTES)
    try:
        return msgspec.json.decode(text, type=Description)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: not a whole description by this version of `tally data prepare` ({error}). "
            "Prepare the data again, or update torchtally."
        ) from error

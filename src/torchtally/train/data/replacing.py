"""Replacing a data set: names that differ from the old one's, and removal of the old files.

With the same names, a kill between two renames would leave a mixture. So shards alternate between
two series of names: train-00000.bin, then train-b-00000.bin, and back.
"""

import os
import re
from pathlib import Path

from torchtally.errors import UsageError
from torchtally.train.data.description import BYTE_TOKENIZER, Description

SERIES = ("", "-b")
TOKENIZER_NAMES = ("tokenizer.json", "tokenizer-b.json")
SHARD = re.compile(r"(train|validation)(-b)?-\d{5,}\.bin")


def free_series(before: Description | None) -> str:
    """The suffix of split names that the old shards do not use."""
    used = {match[2] or "" for name in names_in(before) if (match := SHARD.fullmatch(name))}
    return next(pattern for pattern in SERIES if pattern not in used)


def tokenizer_name(folder: str, before: Description | None, content: str) -> tuple[str, bool]:
    """(file name, whether it already exists): a different tokenizer gets a different name."""
    plain, other = TOKENIZER_NAMES
    if before is None or before.tokenizer != plain:
        return plain, False
    try:
        is_there = Path(folder, plain).read_bytes() == content.encode()
    except OSError:
        is_there = False
    return (plain, True) if is_there else (other, False)


def remove_others(folder: str, before: Description | None, now: Description) -> None:
    """Remove the files of `before`, and shards left without a description by a killed process.

    Raises UsageError if a file cannot be removed; `now` is whole anyway.
    """
    strays = {name for name in os.listdir(folder) if before is not None and SHARD.fullmatch(name)}
    for name in sorted((names_in(before) | strays) - names_in(now)):
        path = Path(folder, name)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be removed ({error.strerror}). The new data is whole and does "
                "not include this file."
            ) from error


def names_in(description: Description | None) -> set[str]:
    """All files named by a description."""
    if description is None:
        return set()
    return description.shard_names | {description.tokenizer} - {BYTE_TOKENIZER}

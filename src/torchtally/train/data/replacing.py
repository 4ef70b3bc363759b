"""A data set in the place of another: names that are not the other's, and the end of the other.

Were they the same names, a kill between two renames would leave a mixture. So the shards of a data
set end with what those of the one before do not: train-00000.bin, train-b-00000.bin, and back.
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
    """What follows a split's name, such that no new shard has the name of an old one."""
    used = {match[2] or "" for name in names_in(before) if (match := SHARD.fullmatch(name))}
    return next(pattern for pattern in SERIES if pattern not in used)


def tokenizer_name(folder: str, before: Description | None, content: str) -> tuple[str, bool]:
    """(name, whether it is there already): of another tokenizer than `before`'s another one."""
    plain, other = TOKENIZER_NAMES
    if before is None or before.tokenizer != plain:
        return plain, False
    try:
        is_there = Path(folder, plain).read_bytes() == content.encode()
    except OSError:
        is_there = False
    return (plain, True) if is_there else (other, False)


def remove_others(folder: str, before: Description | None, now: Description) -> None:
    """Remove the files of `before`, and shards that a killed process left without a description.

    Raises UsageError where that cannot be done; `now` is whole all the same.
    """
    strays = {name for name in os.listdir(folder) if before is not None and SHARD.fullmatch(name)}
    for name in sorted((names_in(before) | strays) - names_in(now)):
        path = Path(folder, name)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(
                f"{path}: cannot be removed ({error.strerror}). The new data is whole, and this "
                "file no part of it."
            ) from error


def names_in(description: Description | None) -> set[str]:
    """All files that a description names."""
    if description is None:
        return set()
    shards = {shard.name for split in description.splits.values() for shard in split.shards}
    return shards | {description.tokenizer} - {BYTE_TOKENIZER}

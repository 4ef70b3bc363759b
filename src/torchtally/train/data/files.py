"""Paths given by the user, as token files that are checked and opened."""

import glob
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torchtally.errors import UsageError
from torchtally.train.data.check import check_tokens
from torchtally.train.data.description import NAME, Description, description_in
from torchtally.train.data.sniff import token_file
from torchtally.train.data.token_data import Read, TokenData
from torchtally.train.data.token_file import Format, TokenFile
from torchtally.train.data.writer import SHARD

SHARDS = (".bin", ".npy")


def open_tokens(
    paths: Sequence[str],
    *,
    sequence: int,
    vocabulary_size: int,
    seed: int,
    split: str | None = None,
    dtype: str | None = None,
    format: Format | None = None,
    stride: int | None = None,
    read: Read = Read.MAP,
    is_masked: bool = False,
) -> TokenData:
    """The data of a training, with every check that is possible before its first step.

    `seed` selects the tokens to check (`seeds.Source.DATA_CHECK`); `is_masked` says that ids below
    zero are masked targets. Raises UsageError with file and
    byte; see `sniff.token_file`, `check.check_tokens` and `TokenData`.
    """
    files = token_files(paths, split=split, dtype=dtype, format=format)
    if is_masked:
        files = tuple(_with_mask(file) for file in files)
    check_tokens(files, vocabulary_size=vocabulary_size, seed=seed)
    return TokenData(
        files, sequence=sequence, stride=stride, read=read, vocabulary_size=vocabulary_size
    )


def _with_mask(file: TokenFile) -> TokenFile:
    if file.numpy_dtype.kind != "i":
        raise UsageError(
            f"{file.path}: ids of {file.dtype} cannot be below zero, as masked targets are. Save "
            "them as int32."
        )
    return replace(file, is_masked=True)


def token_files(
    paths: Sequence[str],
    *,
    split: str | None = None,
    dtype: str | None = None,
    format: Format | None = None,
) -> tuple[TokenFile, ...]:
    """The files at these paths, a pattern's and a folder's in the order of their names; of a folder
    by `tally data prepare`, the files of one split.

    Raises UsageError for unreadable files, see `sniff.token_file`.
    """
    files: list[TokenFile] = []
    for path in paths:
        description = description_in(path) if os.path.isdir(path) else None
        if description is not None:
            files += _files_of_folder(path, description, split)
            continue
        names = shards(path, split) if os.path.isdir(path) else _matches(path)
        files += (token_file(name, dtype=dtype, format=format) for name in names)
    return tuple(files)


def has_split(path: str, split: str) -> bool:
    """Whether it is a folder with token files of this split."""
    description = description_in(path) if os.path.isdir(path) else None
    if description is not None:
        return split in description.splits
    return os.path.isdir(path) and bool(shards(path, split))


def shards(folder: str, split: str | None) -> list[str]:
    """The token files of a folder without a description, in the order of their names: those with
    "val" in their name, as llm.c's, are validation data.
    """
    names = sorted(name for name in os.listdir(folder) if name.endswith(SHARDS))
    if any(SHARD.fullmatch(name) for name in names):
        raise UsageError(
            f"{folder}: files of `tally data prepare` without {NAME}: it was interrupted, or that "
            "file is gone. Prepare the data again, or name files one by one."
        )
    if not names:
        raise UsageError(
            f"{folder}: a folder without {NAME}, and without files named *.bin or *.npy. Name its "
            "token files one by one, or create the folder with `tally data prepare`."
        )
    is_validation = split == "validation"
    names = [name for name in names if split is None or ("val" in name) == is_validation]
    return [os.path.join(folder, name) for name in names]


def _matches(path: str) -> list[str]:
    """The path, or where no file has that name the files that it is a pattern of."""
    if os.path.lexists(path) or not glob.has_magic(path):
        return [path]
    if not (names := sorted(glob.glob(path, recursive=True))):
        raise UsageError(f"{path}: no file matches the pattern.")
    return names


def _files_of_folder(folder: str, description: Description, split: str | None) -> list[TokenFile]:
    names = list(description.splits) if split is None else [split]
    if split is not None and split not in description.splits:
        raise UsageError(f"{folder}: no split {split!r}; it has {', '.join(description.splits)}.")
    files = []
    for shard in (shard for name in names for shard in description.splits[name].shards):
        file = token_file(str(Path(folder, shard.name)))
        if (file.tokens, file.dtype) != (shard.tokens, description.dtype):
            raise UsageError(
                f"{file.path}: {file.tokens} tokens of {file.dtype}; {NAME} says {shard.tokens} of "
                f"{description.dtype}. The folder mixes two data sets: prepare it again."
            )
        files.append(file)
    return files

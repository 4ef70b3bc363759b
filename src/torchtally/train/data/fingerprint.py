"""Fingerprints of what a training reads: equal if every sampled byte is, wherever the files are.

Files up to 16 MiB are read whole. Of larger ones 256 samples of 64 KiB are read, evenly spaced from
the first byte to the last, so that a fingerprint takes milliseconds a file: another data set is
noticed, a few changed tokens in a large file are not.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from torchtally.train.data.token_file import OpenFile, TokenFile

SAMPLES = 256
SAMPLE_BYTES = 1 << 16

Fingerprint = dict[str, int | str]
"""Plain data, for logs and checkpoints."""


def fingerprint(files: Sequence[TokenFile]) -> Fingerprint:
    """Fingerprint of token ids, in the order of the files. Raises UsageError for unreadable
    files.
    """
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.dtype} {file.tokens}\n".encode())
        add_samples(digest, file.path, file.offset_bytes, file.end_bytes)
    tokens = sum(file.tokens for file in files)
    return {"tokens": tokens, "files": len(files), "sha256": digest.hexdigest()}


def add_samples(digest: Any, path: str, begin: int, end: int) -> None:
    """Add these bytes of a file to a hash, or samples of them."""
    with OpenFile(path) as opened:
        for at in _sample_begins(begin, end):
            digest.update(opened.read(at, min(SAMPLE_BYTES, end - at)))


def _sample_begins(begin: int, end: int) -> Sequence[int]:
    if end - begin <= SAMPLES * SAMPLE_BYTES:
        return range(begin, end, SAMPLE_BYTES)
    last = end - SAMPLE_BYTES - begin
    return [begin + last * sample // (SAMPLES - 1) for sample in range(SAMPLES)]

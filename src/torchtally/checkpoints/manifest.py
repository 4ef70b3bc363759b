"""The manifest of a checkpoint: every tensor, where its bytes are, and their checksums.

It is written last, so a checkpoint with a manifest is whole. Its first line is the SHA-256 of the
rest; tensors and file headers have CRC-32, which detects every error burst of up to 32 bits.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from math import prod
from typing import Any

import msgspec

from torchtally.chips.dtypes import DTYPE_BYTES
from torchtally.errors import CheckpointError
from torchtally.plan.architecture.checkpoint import DTYPES, LENGTH_BYTES

NAME = "manifest.json"
FORMAT_VERSION = 4
"""Readers refuse others. Fields are never added within one: unknown ones are refused."""
MOST_BYTES = 2**30
"""The largest manifest read: that of a 70B model on 1024 ranks is half of it."""
MOST_NUMBER = 2**63 - 1
MOST_AXES = 64

ELEMENT_BYTES = {name: DTYPE_BYTES[name] for name, _ in DTYPES.values() if name in DTYPE_BYTES}
"""Dtypes that torch and safetensors share, by torch's names."""
FILE = re.compile(r"[A-Za-z0-9_-]+\.safetensors")


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A box of a tensor in one file: all of it, or the shard of a rank."""

    file: str
    first_byte: int
    size_bytes: int
    offsets: tuple[int, ...]
    """Where the box begins on each axis."""
    sizes: tuple[int, ...]
    crc32: int


class SavedTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor and the pieces that cover it."""

    dtype: str
    """torch's name."""
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


class SavedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A safetensors file: a header, then the tensors back to back."""

    size_bytes: int
    header_bytes: int
    header_crc32: int


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything in a checkpoint except the tensors' values."""

    format_version: int
    step: int
    """Completed steps."""
    ranks: int
    """How many ranks saved it."""
    unix_s: float
    versions: dict[str, str]
    config: dict[str, Any]
    state: dict[str, Any]
    """Plain data: loss scale, hyperparameters, counters."""
    fingerprints: dict[str, Any] = {}
    """Of the data."""
    files: dict[str, SavedFile]
    tensors: dict[str, SavedTensor]

    def to_bytes(self) -> bytes:
        body = msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"
        return _first_line(body) + body


def _first_line(body: bytes) -> bytes:
    return b'{"sha256": "%s"}\n' % hashlib.sha256(body).hexdigest().encode()


def read_manifest(content: bytes, place: str) -> Manifest:
    """Parse and validate a manifest. Raises CheckpointError for any change since it was written,
    and OtherFormatError for a format that only another version reads.

    Files and tensors are consistent: pieces cover each tensor exactly, and each file consists of
    its header and its pieces. The files themselves are checked separately.
    """
    first_line, _, body = content.partition(b"\n")
    if first_line + b"\n" != _first_line(body):
        raise CheckpointError(f"{place}: is damaged, or is not a manifest.")
    try:
        version = msgspec.json.decode(body, type=_Version).format_version
        if version != FORMAT_VERSION:
            raise OtherFormatError(
                f"{place}: has format version {version}; this torchtally reads "
                f"{FORMAT_VERSION}. Resume with the version that wrote it."
            )
        manifest = msgspec.json.decode(body, type=Manifest)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise CheckpointError(f"{place}: is not the manifest of a checkpoint ({error}).") from error
    if wrong := _first_contradiction(manifest):
        raise CheckpointError(f"{place}: is inconsistent: {wrong}.")
    return manifest


class OtherFormatError(CheckpointError):
    """Written by another version; falling back to an older checkpoint would lose steps."""


class _Version(msgspec.Struct):
    format_version: int


def _first_contradiction(manifest: Manifest) -> str | None:
    if not 0 <= manifest.step <= MOST_NUMBER or manifest.ranks < 1:
        return "its version, step or ranks"
    for name in manifest.files:
        if not FILE.fullmatch(name):
            return f"{name!r} is not a valid file name for tensors"
    spans: dict[str, list[tuple[int, int]]] = {file: [] for file in manifest.files}
    for name, tensor in manifest.tensors.items():
        for piece in tensor.pieces:
            if piece.file not in spans:
                return f"{name!r} refers to a file that is not listed, {piece.file!r}"
            spans[piece.file].append((piece.first_byte, piece.size_bytes))
        if not _is_filled(tensor):
            return f"the pieces of {name!r} do not cover it"
    for name, file in manifest.files.items():
        if not _tile([(0, file.header_bytes), *spans[name]], file.size_bytes):
            return f"{name} is not covered by its header and its tensors"
        if file.header_bytes <= LENGTH_BYTES:
            return f"{name} has no header"
    return None


def _is_filled(tensor: SavedTensor) -> bool:
    """Whether the pieces have the right sizes and cover each element exactly once."""
    element_bytes, shape = ELEMENT_BYTES.get(tensor.dtype), tensor.shape
    if element_bytes is None or len(shape) > MOST_AXES or min(shape, default=0) < 0:
        return False
    if prod(max(size, 1) for size in shape) * element_bytes > MOST_NUMBER:
        return False
    for piece in tensor.pieces:
        box = (piece.offsets, piece.sizes, shape)
        if not (
            len(piece.offsets) == len(piece.sizes) == len(shape)
            and min((*piece.offsets, *piece.sizes), default=0) >= 0
            and all(first + size <= whole for first, size, whole in zip(*box, strict=True))
            and piece.size_bytes == prod(piece.sizes) * element_bytes
        ):
            return False
    boxes = [
        tuple(zip(one.offsets, one.sizes, strict=True)) for one in tensor.pieces if one.size_bytes
    ]
    return bool(tensor.pieces) and (not prod(shape) or _fill(boxes, shape))


def _fill(boxes: Iterable[tuple[tuple[int, int], ...]], shape: tuple[int, ...]) -> bool:
    """Whether boxes of (first, size) per axis cover each element once; checked axis by axis."""
    boxes = sorted(boxes)
    if not shape:
        return len(boxes) == 1
    slabs = {slab: list(group) for slab, group in groupby(boxes, key=lambda box: box[0])}
    return _tile(list(slabs), shape[0]) and all(
        _fill([box[1:] for box in slab], shape[1:]) for slab in slabs.values()
    )


def _tile(spans: Sequence[tuple[int, int]], whole: int) -> bool:
    """Whether spans of (first, size) are contiguous from 0 to `whole`."""
    end = 0
    for first, size in sorted(spans):
        if first != end or size < 0:
            return False
        end += size
    return end == whole


@contextmanager
def explain_damaged_state(manifest: Manifest) -> Iterator[None]:
    """Turn missing or malformed plain data into a CheckpointError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"The manifest of step {manifest.step} contains no valid training state "
            f"({type(error).__name__}: {error})."
        ) from error

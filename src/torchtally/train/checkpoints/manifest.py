"""What a checkpoint says of itself: every tensor, where its bytes are, and their checksums.

The manifest is written last, so that a checkpoint with one is whole. Its first line is the SHA-256
of all that follows it; tensors and the headers of their files have CRC-32, which finds every change
of up to 32 bits in a row.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from torchtally.errors import CheckpointError

NAME = "manifest.json"
FORMAT_VERSION = 1
"""A reader refuses a higher one."""

_BEGIN = b'{"sha256": "'
_BETWEEN = b'",\n"manifest": '
_END = b"}\n"
_DIGITS = 64


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a tensor, in one file: the whole of it, or a rank's shard."""

    file: str
    first_byte: int
    size_bytes: int
    offsets: tuple[int, ...]
    """Where the box begins, on each axis."""
    sizes: tuple[int, ...]
    crc32: int


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor of any number of pieces that fill it."""

    dtype: str
    """torch's name."""
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file of safetensors: a header, then tensors one behind the other."""

    size_bytes: int
    header_bytes: int
    header_crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All of a checkpoint but the tensors' numbers."""

    format_version: int
    step: int
    """Steps that are done."""
    ranks: int
    """That saved it."""
    unix_s: float
    versions: dict[str, str]
    config: dict[str, Any]
    state: dict[str, Any]
    """Plain data of the training: loss scale, hyperparameters, counters."""
    files: dict[str, SavedFile]
    tensors: dict[str, SavedTensor]

    def to_bytes(self) -> bytes:
        body = msgspec.json.format(msgspec.json.encode(self), indent=1)
        rest = _BETWEEN + body + _END
        return _BEGIN + hashlib.sha256(rest).hexdigest().encode() + rest


def read_manifest(content: bytes, place: str) -> Manifest:
    """The manifest of these bytes. Raises CheckpointError unless they are all as written."""
    head = len(_BEGIN) + _DIGITS
    rest = content[head:]
    digest = content[len(_BEGIN) : head]
    is_whole = content.startswith(_BEGIN) and digest == hashlib.sha256(rest).hexdigest().encode()
    if not (is_whole and rest.startswith(_BETWEEN) and rest.endswith(_END)):
        raise CheckpointError(f"{place}: is damaged, or no manifest.")
    body = rest[len(_BETWEEN) : -len(_END)]
    try:
        version = msgspec.json.decode(body, type=_Version).format_version
        if version > FORMAT_VERSION:
            raise NewerFormatError(
                f"{place}: has format version {version}, and this torchtally knows "
                f"{FORMAT_VERSION}. Go on with the version that wrote it, or a newer one."
            )
        return msgspec.json.decode(body, type=Manifest)
    except msgspec.DecodeError as error:
        raise CheckpointError(f"{place}: is no manifest of a checkpoint ({error}).") from error


class NewerFormatError(CheckpointError):
    """Whole, but written by a torchtally to come: an older checkpoint is no replacement."""


class _Version(msgspec.Struct):
    format_version: int


def plain(value: Any) -> Any:
    """The value as JSON gives it back: tuples are lists, and keys are text."""
    return msgspec.json.decode(msgspec.json.encode(value))


def merged(found: Mapping[str, list[tuple[str, tuple[int, ...], Piece]]]) -> dict[str, SavedTensor]:
    """Tensors of their pieces: by name, (dtype, shape of the whole, piece) of each."""
    return {
        name: SavedTensor(
            dtype=pieces[0][0],
            shape=pieces[0][1],
            pieces=tuple(sorted((it for _, _, it in pieces), key=lambda it: it.offsets)),
        )
        for name, pieces in sorted(found.items())
    }

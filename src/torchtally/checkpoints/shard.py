"""A safetensors file, written with checksums of its tensors and verified against them.

The writer of the safetensors package first copies every tensor while holding the GIL, and flushes
nothing; this one writes tensors in place and releases the GIL. Its reader takes a path, which may
name another file by then, and trusts the header; this one takes an open directory and the manifest.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchtally.checkpoints.disk import WRITE_CHUNK_BYTES, Directory
from torchtally.checkpoints.manifest import Piece, SavedFile
from torchtally.errors import CheckpointError
from torchtally.plan.architecture.checkpoint import DTYPES, LENGTH_BYTES

ALIGNMENT_BYTES = 8
"""Tensors begin at multiples of it: headers are padded with spaces."""

SAFETENSORS_DTYPES = {name: code for code, (name, _) in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Box:
    """The part of a tensor that one file holds: a box, on the host."""

    name: str
    tensor: Tensor
    offsets: tuple[int, ...]
    """Where the box begins in the full tensor, on each axis."""


def write_shard(
    directory: Directory, file: str, boxes: Sequence[Box]
) -> tuple[SavedFile, dict[str, Piece]]:
    """Write a new file with these tensors; durable when this returns. Pieces are by box's name.

    Raises CheckpointError for write errors, and for a dtype that safetensors lacks.
    """
    # Larger elements first, as the safetensors package does: each tensor is then aligned.
    assert len({box.name for box in boxes}) == len(boxes)
    boxes = sorted(boxes, key=lambda box: (-box.tensor.element_size(), box.name))
    header = _header(boxes)
    numbers = [_bytes(box.tensor) for box in boxes]
    size_bytes = len(header) + sum(len(view) for view in numbers)
    sums = [0] * len(boxes)

    def parts() -> Iterator[bytes | memoryview]:
        yield header
        for at, whole in enumerate(numbers):
            for start in range(0, len(whole), WRITE_CHUNK_BYTES):
                chunk = whole[start : start + WRITE_CHUNK_BYTES]
                sums[at] = zlib.crc32(chunk, sums[at])
                yield chunk

    directory.write(file, parts(), size_bytes)
    pieces, first = {}, len(header)
    for box, whole, crc32 in zip(boxes, numbers, sums, strict=True):
        sizes = tuple(box.tensor.shape)
        pieces[box.name] = Piece(file, first, len(whole), box.offsets, sizes, crc32)
        first += len(whole)
    return SavedFile(size_bytes, len(header), zlib.crc32(header)), pieces


def check_shard(directory: Directory, name: str, file: SavedFile, pieces: Iterable[Piece]) -> None:
    """Raises CheckpointError if any byte of the file has changed; the pieces fill it."""
    place = directory.path / name
    found_bytes = directory.size_bytes(name)
    if found_bytes != file.size_bytes:
        raise CheckpointError(
            f"{place}: has {found_bytes} bytes, but {file.size_bytes} were written."
        )
    spans = [(0, file.header_bytes, file.header_crc32)]
    spans += ((piece.first_byte, piece.size_bytes, piece.crc32) for piece in pieces)
    for first, size_bytes, crc32 in spans:
        if _crc32(directory, name, first, size_bytes) != crc32:
            raise CheckpointError(f"{place}: bytes {first} to {first + size_bytes} are damaged.")


def _crc32(directory: Directory, name: str, first: int, size_bytes: int) -> int:
    """CRC-32 of these bytes of a file, a few MiB at a time."""
    memory, end, crc32 = (
        memoryview(bytearray(min(size_bytes, WRITE_CHUNK_BYTES))),
        first + size_bytes,
        0,
    )
    for at in range(first, end, WRITE_CHUNK_BYTES):
        part = memory[: end - at]
        directory.read_into(part, name, at)
        crc32 = zlib.crc32(part, crc32)
    return crc32


def read_piece(directory: Directory, piece: Piece, dtype: torch.dtype) -> Tensor:
    """The values of a piece, of shape `piece.sizes`, verified against their checksum once more.

    Raises CheckpointError if they have changed.
    """
    numbers = torch.empty(piece.size_bytes, dtype=torch.uint8)
    memory = numbers.numpy().data
    directory.read_into(memory, piece.file, piece.first_byte)
    if zlib.crc32(memory) != piece.crc32:
        end = piece.first_byte + piece.size_bytes
        raise CheckpointError(
            f"{directory.path / piece.file}: bytes {piece.first_byte} to {end} are damaged."
        )
    return numbers.view(dtype).reshape(piece.sizes)


def _header(boxes: Iterable[Box]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for box in boxes:
        start, end = end, end + box.tensor.numel() * box.tensor.element_size()
        entries[box.name] = {
            "dtype": _code(box),
            "shape": list(box.tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT_BYTES)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _code(box: Box) -> str:
    name = str(box.tensor.dtype).removeprefix("torch.")
    if name not in SAFETENSORS_DTYPES:
        raise CheckpointError(f"{box.name}: safetensors does not support dtype {name}.")
    return SAFETENSORS_DTYPES[name]


def _bytes(tensor: Tensor) -> memoryview:
    """The bytes of the tensor in memory."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return flat.numpy().data

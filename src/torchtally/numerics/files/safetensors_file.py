"""Tensors of a .safetensors file: its header, then bytes where it says, without a package."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from torchtally.errors import UsageError
from torchtally.numerics.files.decoding import decoder, element_bytes
from torchtally.numerics.files.stored import Array, StoredTensor, spans
from torchtally.plan.architecture.checkpoint import Tensor, read_checkpoint


def tensors(path: Path) -> Iterator[StoredTensor]:
    """All tensors, in the order of their bytes."""
    for tensor in read_checkpoint(path).tensors:
        yield StoredTensor(tensor.name, tensor.dtype, tensor.shape, partial(_parts, path, tensor))


def _parts(path: Path, tensor: Tensor) -> Iterator[Array]:
    decode = decoder(tensor.dtype)
    assert decode is not None, tensor
    size = element_bytes(tensor.dtype)
    try:
        with path.open("rb") as file:
            for first, last, width in spans(tensor.shape):
                file.seek(tensor.begins_at + first * size)
                yield decode(file.read((last - first) * size)).reshape(-1, width)
    except OSError as error:
        raise UsageError(f"{path}: {tensor.name} cannot be read: {error.strerror}.") from error

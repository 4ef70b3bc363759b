"""Tensors of a GGUF file, by the package `gguf`, which knows llama.cpp's blocks."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torchtally.errors import UsageError, needed_package
from torchtally.numerics.files.stored import PART_ELEMENTS, Array, StoredTensor

NAMES = {"F16": "float16", "F32": "float32", "F64": "float64", "BF16": "bfloat16"}
"""Of types that torch has; others keep the name of their blocks."""


def tensors(path: Path) -> Iterator[StoredTensor]:
    """All tensors; numbers in blocks are multiplied by their scales."""
    gguf = needed_package("gguf", "A GGUF file", "gguf")
    needed_package("gguf.quants", "A GGUF file", "gguf")
    try:
        reader = gguf.GGUFReader(path, "r")
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise UsageError(f"{path}: cannot be read as a GGUF file: {error}") from error
    for tensor in reader.tensors:
        shape = tuple(int(side) for side in reversed(tensor.shape))
        name = tensor.tensor_type.name
        dtype = NAMES.get(name, name.lower() if name.startswith(("I", "F")) else name)
        yield StoredTensor(tensor.name, dtype, shape, partial(_parts, gguf, tensor, shape))


def _parts(gguf: Any, tensor: Any, shape: tuple[int, ...]) -> Iterator[Array]:
    """Rows, which hold whole blocks."""
    width = shape[-1] if shape else 1
    rows = tensor.data.reshape(-1, tensor.data.shape[-1])
    step = max(1, PART_ELEMENTS // width)
    for first in range(0, len(rows), step):
        part = gguf.quants.dequantize(rows[first : first + step], tensor.tensor_type)
        yield part.reshape(-1, width)

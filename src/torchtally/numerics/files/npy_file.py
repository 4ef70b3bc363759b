"""The array of a .npy file, mapped into memory."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from torchtally.errors import UsageError
from torchtally.numerics.files.stored import Array, StoredTensor, spans


def tensors(path: Path) -> Iterator[StoredTensor]:
    """The one array. Raises UsageError for pickled objects."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"{path}: cannot be read as a .npy file: {error}") from error
    yield StoredTensor(path.stem, array.dtype.name, array.shape, partial(parts_of, array))


def parts_of(array: Array) -> Iterator[Array]:
    """An array's rows, as many at a time as make a part."""
    flat = array.reshape(-1)
    for first, last, width in spans(array.shape):
        yield flat[first:last].reshape(-1, width)

"""Tensors of a file that torch.save has written: a state dict, or a checkpoint that holds some."""

import pickle
import zipfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtally.errors import UsageError
from torchtally.numerics.files.stored import Array, StoredTensor, spans

if TYPE_CHECKING:
    from torch import Tensor


def tensors(path: Path) -> Iterator[StoredTensor]:
    """Every tensor in nested dicts and lists, by its path; weights alone are unpickled.

    Raises UsageError for a file that holds other objects, or none of torch's.
    """
    import torch

    try:
        # A file in the format before torch 1.6, which is no zip archive, cannot be mapped.
        content = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0][:200] or f"{type(error).__name__}."
        raise UsageError(
            f"{path}: cannot be read as torch.save's file of tensors: {reason} Save a state dict."
        ) from error
    for name, tensor in _named(content, (), ()):
        dtype = kind_of(tensor)
        yield StoredTensor(name, dtype, tuple(tensor.shape), partial(parts_of, tensor))


def _named(
    held: Any, path: tuple[str, ...], above: tuple[int, ...]
) -> "Iterator[tuple[str, Tensor]]":
    """Tensors by their keys; what holds itself is entered once."""
    import torch

    if isinstance(held, torch.Tensor):
        yield ".".join(path) or "tensor", held
    elif id(held) in above:
        return
    elif isinstance(held, Mapping):
        for key, value in held.items():
            yield from _named(value, (*path, str(key)), (*above, id(held)))
    elif isinstance(held, list | tuple):
        for place, value in enumerate(held):
            yield from _named(value, (*path, str(place)), (*above, id(held)))


def kind_of(tensor: "Tensor") -> str:
    """Dtype of a tensor; of one without values in rows, with what it is."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.is_meta:
        return f"meta {dtype}"
    layout = str(tensor.layout).removeprefix("torch.")
    return dtype if layout == "strided" else f"{layout} {dtype}"


def parts_of(tensor: "Tensor") -> Iterator[Array]:
    """A tensor's rows as float64, as many at a time as make a part."""
    flat = tensor.detach().reshape(-1)
    for first, last, width in spans(tuple(tensor.shape)):
        yield flat[first:last].cpu().double().numpy().reshape(-1, width)

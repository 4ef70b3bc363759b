"""Results built from their shapes, for calls whose signature was seen before."""

from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.virtual.invocation import META

EMPTY_STRIDED = torch.empty_strided
"""Torch's own: a session's takes devices as users write them."""


class ResultTemplate:
    """Shapes, strides and dtypes of a call's results."""

    __slots__ = ("container", "items")

    def __init__(self, container: type | None, items: list[Any]) -> None:
        self.container = container
        self.items = items

    def build(self) -> Any:
        tensors = [
            EMPTY_STRIDED(item.shape, item.stride, dtype=item.dtype, device=META)
            if type(item) is FreshTensor
            else item
            for item in self.items
        ]
        return tensors[0] if self.container is None else self.container(tensors)


class FreshTensor:
    """A result in storage of its own."""

    __slots__ = ("dtype", "shape", "stride")

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tensor.shape
        self.stride = tensor.stride()
        self.dtype = tensor.dtype


def template_of(result: Any) -> ResultTemplate | None:
    """A template of results; None unless every tensor owns the whole of a storage of its own.

    A view or an input given back would need the tensors of the call it is built for.
    """
    if isinstance(result, Tensor):
        container, items = None, [result]
    elif type(result) in (tuple, list):
        container, items = type(result), list(result)
    else:
        return None
    tensors = [item for item in items if isinstance(item, Tensor)]
    if not all(owns_fresh_storage(tensor) for tensor in tensors):
        return None
    if len({private.storage_identity(tensor) for tensor in tensors}) < len(tensors):
        return None
    if not all(isinstance(item, (Tensor, int, type(None))) for item in items):
        return None
    return ResultTemplate(
        container, [FreshTensor(item) if isinstance(item, Tensor) else item for item in items]
    )


def owns_fresh_storage(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.storage_offset() or tensor.is_conj():
        return False
    storage = tensor.untyped_storage()
    return getattr(storage, "virtual", None) is None and storage.nbytes() == extent_bytes(tensor)


def extent_bytes(tensor: Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()

"""Nested tensors: jagged ones are a Python class, which is simulated; strided ones are not."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from torchtally.errors import UnsupportedError
from torchtally.virtual.stand_ins import StandIn


def check_layout(layout: Any) -> None:
    """Raise UnsupportedError for the layout that a C++ class keeps in a device's memory.

    NestedTensorImpl takes no meta storage (aten/src/ATen/NestedTensorImpl.cpp).
    """
    if layout is None or layout is torch.strided:
        raise UnsupportedError(
            "tally does not simulate nested tensors of layout torch.strided on a GPU.\n"
            "Make them with layout=torch.jagged, which PyTorch recommends: "
            "torch.nested.nested_tensor(tensors, layout=torch.jagged)."
        )


def checking(native: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that makes a nested tensor of a list."""

    def make(ts: Any, *args: Any, **kwargs: Any) -> Tensor:
        items = ts if isinstance(ts, Iterable) else ()
        if "cuda" in (torch.device(kwargs.get("device") or "cpu").type, *map(device_type, items)):
            check_layout(kwargs.get("layout"))
        return native(ts, *args, **kwargs)

    return make


def device_type(item: Any) -> str:
    return item.device.type if isinstance(item, Tensor) else ""


def stand_ins() -> list[StandIn]:
    return [
        StandIn(torch.nested, name, checking(getattr(torch.nested, name)))
        for name in ("nested_tensor", "as_nested_tensor")
    ]

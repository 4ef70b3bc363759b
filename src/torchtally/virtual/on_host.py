"""A script for "cuda" with real values: its tensors are on the host, its questions are answered for
a chip. Nothing is recorded; `session` is the simulation, whose tensors have no values.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchtally import torch_private as private
from torchtally.chips import Chip
from torchtally.virtual.cuda import CudaModule
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.observer import NullObserver
from torchtally.virtual.session import memory_of
from torchtally.virtual.stand_ins import StandIn, apply
from torchtally.virtual.storage import HostMemory

HOST = "cpu"
Compiled = Callable[..., Any]


@contextmanager
def cuda_on_host(chip: Chip) -> Iterator[None]:
    """Context in which `torch.cuda` answers for the chip, and what a script puts on "cuda" is on
    the host, computed for real. `torch.compile` compiles nothing.
    """
    observer = NullObserver()
    # Never entered: it holds the state that torch.cuda's functions ask for.
    mode = VirtualDispatch([memory_of(chip, 0, observer, is_limited=True)], HostMemory(), observer)
    with apply([*CudaModule(mode, chip).stand_ins(), *_stand_ins()]), _OnHost():
        yield


class _OnHost(TorchFunctionMode):
    """Says "cpu" to torch's functions where the script says "cuda"."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.cuda:
            return args[0]
        if func is Tensor.to:
            args = (args[0], *map(numbered, args[1:]))
        args, kwargs = private.tree_map_only((str, torch.device), on_host, (args, kwargs or {}))
        return func(*args, **kwargs)


def on_host(device: Any) -> Any:
    """The host for a GPU; every other device or text as it is."""
    return HOST if str(device).partition(":")[0] == "cuda" else device


def numbered(device: Any) -> Any:
    """The host for a GPU that is given by its number."""
    return HOST if type(device) is int else device


def _stand_ins() -> list[StandIn]:
    native, native_to = torch.autocast.__init__, torch.nn.Module.to

    def autocast(
        self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        if dtype is None and device_type == "cuda":
            dtype = torch.get_autocast_dtype(device_type)  # float16, where the CPU's is bfloat16
        native(self, on_host(device_type), dtype, *args, **kwargs)

    def compiled(model: Compiled | None = None, **kwargs: Any) -> Any:
        return model if model is not None else lambda function: function

    def to(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return native_to(module, *map(numbered, args), **kwargs)

    return [
        StandIn(torch.nn.Module, "to", to),
        StandIn(torch.autocast, "__init__", autocast),
        StandIn(torch, "compile", compiled),
        StandIn(torch.nn.Module, "compile", lambda module, *args, **kwargs: None),
        # Of a loader's thread, in which the mode is not active.
        StandIn(Tensor, "pin_memory", lambda tensor, *args: tensor),
    ]

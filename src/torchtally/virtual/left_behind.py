"""Tensors of an earlier session that still live: on the GPU of this one as soon as they are used.

A notebook's cells run one after the other, each in a session of its own that begins with an empty
GPU. What a cell uses of those before it is put there first; what it does not use takes no memory,
so that a cell costs the same whenever it is run. A script has one session, and needs none of this.
"""

import gc
from collections.abc import Callable, Iterable
from typing import Any

from torchtally.virtual.device_memory import DeviceMemory
from torchtally.virtual.session import VirtualGPU
from torchtally.virtual.storage import Home, HostMemory, VirtualStorage


class LeftBehind(VirtualStorage):
    """A storage of a session that is over. Whoever asks where it is, or for its number, uses it: it
    gets a place in the session that runs, and is an ordinary storage from then on.
    """

    __slots__ = ()

    used: Callable[[VirtualStorage], None] = staticmethod(lambda storage: None)
    """Called with a storage that has just got its place."""

    @property
    def home(self) -> Home:  # type: ignore[override]
        return take_in(self).home

    @property
    def number(self) -> int:  # type: ignore[override]
        return take_in(self).number

    def __del__(self) -> None:
        """Its memory was that of a device which is gone."""


HOME: Any = VirtualStorage.__dict__["home"]
NUMBER: Any = VirtualStorage.__dict__["number"]


def take_in(storage: VirtualStorage) -> VirtualStorage:
    """Raises torch.OutOfMemoryError where there is no room for it."""
    used = LeftBehind.used
    storage.__class__ = VirtualStorage
    storage.home.allocate(storage)
    used(storage)
    return storage


def leave_behind(gpu: VirtualGPU, storages: Iterable[VirtualStorage]) -> None:
    """Let these storages of sessions that are over wait until this one uses them."""
    for storage in storages:
        home = HOME.__get__(storage)
        if isinstance(home, HostMemory):
            HOME.__set__(storage, gpu.mode.host)
        elif isinstance(home, DeviceMemory):
            number = min(home.device.index, len(gpu.mode.gpus) - 1)
            HOME.__set__(storage, gpu.mode.gpus[number])
        else:
            continue
        storage.block = None  # of an allocator that nobody asks any more
        NUMBER.__set__(storage, -1)
        storage.__class__ = LeftBehind


def living_storages() -> list[VirtualStorage]:
    """All that Python still reaches; what it does not is freed first."""
    gc.collect()
    return [each for each in gc.get_objects() if issubclass(type(each), VirtualStorage)]

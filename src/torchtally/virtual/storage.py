"""Which device a meta storage stands for, how long it lives, and its value where it has one.

A tensor on the virtual GPU is an ordinary tensor on torch's meta device. What makes it virtual is
a `VirtualStorage` kept on the Python object of its untyped storage: torch keeps that object for as
long as the storage itself, so every view finds it and it dies with the last one.
"""

from typing import Protocol

import torch

from torchtally.record.storage import allocated_bytes


class Home(Protocol):
    """Where storages live and are counted: a virtual GPU's memory, or the host's."""

    device: torch.device

    def allocated(self, storage: "VirtualStorage") -> None: ...

    def freed(self, storage: "VirtualStorage") -> None: ...


class VirtualStorage:
    """One storage's stand-in for device memory. Deleted, hence freed, with the storage itself."""

    __slots__ = (
        "__weakref__",
        "address",
        "home",
        "is_pinned",
        "number",
        "requested_bytes",
        "value",
    )

    def __init__(self, home: Home, requested_bytes: int) -> None:
        self.home = home
        self.requested_bytes = requested_bytes
        self.number = -1
        """The recorder's number for it; -1 while nothing records."""
        self.address = 0
        self.is_pinned = False
        self.value: torch.UntypedStorage | None = None
        """The real bytes, on the host, where the values policy keeps them."""
        home.allocated(self)

    @property
    def bytes(self) -> int:
        return allocated_bytes(self.requested_bytes)

    def resize(self, requested_bytes: int) -> None:
        """The storage was resized in place: to the allocator a free and a new allocation."""
        self.home.freed(self)
        self.requested_bytes = requested_bytes
        self.value = None
        self.home.allocated(self)

    def __del__(self) -> None:
        self.home.freed(self)


def virtual_of(tensor: torch.Tensor) -> VirtualStorage | None:
    """The tensor's virtual storage; None for a real tensor, or one the user put on "meta"."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse, or wrapped by torch.func: no storage
        return None
    found: VirtualStorage | None = getattr(storage, "virtual", None)
    return found


def make_virtual(tensor: torch.Tensor, home: Home) -> VirtualStorage:
    """Give a meta tensor's storage to a home, unless it has one already."""
    storage = tensor.untyped_storage()
    found: VirtualStorage | None = getattr(storage, "virtual", None)
    if found is None:
        found = VirtualStorage(home, storage.nbytes())
        storage.virtual = found  # type: ignore[attr-defined]
    return found


class HostMemory:
    """Host memory of big virtual CPU tensors: they cost nothing here and are not accounted."""

    device = torch.device("cpu")

    def allocated(self, storage: VirtualStorage) -> None:
        pass

    def freed(self, storage: VirtualStorage) -> None:
        pass


class StorageObserver(Protocol):
    """Told of every allocation and free on a virtual GPU, in order."""

    def storage_born(self, storage: VirtualStorage) -> None: ...

    def storage_died(self, storage: VirtualStorage) -> None: ...


FIRST_ADDRESS = 0x7F00_0000_0000
"""Below 2**53, so that a JavaScript viewer keeps every address exact."""


class DeviceMemory:
    """The memory of one virtual GPU at tensor level: allocated now, and at most."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.allocated_bytes = 0
        self.peak_allocated_bytes = 0
        self.allocations = 0
        self.observer: StorageObserver | None = None
        self._next_address = FIRST_ADDRESS

    def allocated(self, storage: VirtualStorage) -> None:
        size = storage.bytes
        storage.address = self._next_address
        self._next_address += size
        self.allocations += 1
        self.allocated_bytes += size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        if self.observer is not None:
            self.observer.storage_born(storage)

    def freed(self, storage: VirtualStorage) -> None:
        self.allocated_bytes -= storage.bytes
        if self.observer is not None:
            self.observer.storage_died(storage)

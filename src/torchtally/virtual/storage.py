"""Which device a meta storage stands for, its lifetime, and its value if it has one.

A tensor on the virtual GPU is an ordinary tensor on torch's meta device, with a `VirtualStorage` on
the Python object of its untyped storage. A StorageImpl owns that object once C++ holds it beyond
Python (PyObject preservation, torch/csrc/Storage.cpp): every view finds the same object, and it is
deleted with the last of them.
"""

from typing import TYPE_CHECKING, Any, Protocol

import torch

from torchtally import torch_private as private
from torchtally.memory.allocator import Block

if TYPE_CHECKING:
    from torchtally.virtual.facts import Facts


class Home(Protocol):
    """Home in which storages live and are counted: a virtual GPU's memory, or the host's."""

    device: torch.device

    def allocate(self, storage: "VirtualStorage") -> None: ...

    def free(self, storage: "VirtualStorage") -> None: ...

    def resize(self, storage: "VirtualStorage", requested_bytes: int) -> None: ...


MOST_KEPT_BYTES = 1 << 23
"""Of a storage that grows."""


class VirtualStorage:
    """One storage's stand-in for device memory. Deleted, hence freed, with the storage itself."""

    __slots__ = (
        "__weakref__",
        "assumption",
        "attended",
        "block",
        "block_mask",
        "facts",
        "facts_dtype",
        "home",
        "is_lent",
        "is_trained",
        "lent_address",
        "number",
        "requested_bytes",
        "value",
    )

    def __init__(self, home: Home, requested_bytes: int) -> None:
        self.requested_bytes = requested_bytes
        self.number = -1
        """The recorder's number for it; -1 without a recorder."""
        self.block: Block | None = None
        """Its place in the device's memory; None on the host, and for no bytes at all."""
        self.value: torch.UntypedStorage | None = None
        """The real bytes, on the host, where `values.py` keeps them."""
        self.facts: Facts | None = None
        """What is known of the elements without `value`, read as `facts_dtype`."""
        self.facts_dtype: torch.dtype | None = None
        self.attended: tuple[int, int] | None = None
        """Of a mask that is added to scores: see `attended.py`."""
        self.block_mask: tuple[Any, ...] | None = None
        """Of the blocks of a mask for `flex_attention`: see `block_masks.py`."""
        self.assumption: str | None = None
        """What was assumed for value or facts, to be said where they are read."""
        self.is_trained = False
        """It follows from parameters, by floats alone: what may be a loss (`facts/losses.py`)."""
        self.is_lent = False
        self.lent_address = 0
        """Where it lies in memory of others, where it has no block."""
        self.home = home
        home.allocate(self)

    @classmethod
    def lend(cls, home: Home, address: int, requested_bytes: int, number: int) -> "VirtualStorage":
        """Lends memory that is not its own: what a CUDA graph writes to, or reads."""
        storage = cls.__new__(cls)
        storage.requested_bytes, storage.number, storage.home = requested_bytes, number, home
        storage.is_lent, storage.lent_address, storage.block = True, address, None
        storage.is_trained = False
        storage.forget()
        storage.facts_dtype = None
        return storage

    @property
    def address(self) -> int:
        return self.lent_address if self.block is None else self.block.address

    def resize(self, requested_bytes: int) -> None:
        """The storage was resized in place: a new allocation, and the old one is freed.

        One that grows keeps its bytes (`resize_bytes_cuda`, ATen/native/cuda/Resize.cpp).
        """
        value, assumption = self.value, self.assumption
        self.forget()
        if value is not None and 0 < value.nbytes() < requested_bytes <= MOST_KEPT_BYTES:
            size = value.nbytes()
            value.resize_(requested_bytes)
            value[size:] = 0
            self.value, self.assumption = value, assumption
        self.home.resize(self, requested_bytes)

    def forget(self) -> None:
        """Nothing is known of the elements any more."""
        self.value = self.facts = self.assumption = None
        self.attended = self.block_mask = None

    def __del__(self) -> None:
        self.home.free(self)


def virtual_of(tensor: torch.Tensor) -> VirtualStorage | None:
    """The tensor's virtual storage; None for a real tensor, or one the user put on "meta".

    Of a sparse tensor it is that of its values.
    """
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse, or wrapped by torch.func: no storage
        return virtual_of(private.sparse_values(tensor)) if is_sparse(tensor) else None
    virtual: VirtualStorage | None = getattr(storage, "virtual", None)
    return virtual


SPARSE = frozenset(
    [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]
)


def is_sparse(tensor: torch.Tensor) -> bool:
    """Whether it has one of torch's sparse layouts: it consists of tensors of indices and of
    values.
    """
    return tensor.layout in SPARSE


def make_virtual(tensor: torch.Tensor, home: Home) -> VirtualStorage:
    """Assign a meta tensor's storage to a home, unless it has one already."""
    storage = tensor.untyped_storage()
    virtual: VirtualStorage | None = getattr(storage, "virtual", None)
    if virtual is None:
        virtual = VirtualStorage(home, storage.nbytes())
        storage.virtual = virtual  # type: ignore[attr-defined]
    return virtual


def is_pinned(tensor: torch.Tensor) -> bool:
    """The tensor is in host memory that the script takes for page-locked."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return False
    return bool(getattr(storage, "pinned", False))


def pin(tensor: torch.Tensor) -> None:
    """Let a host tensor's storage count as page-locked."""
    tensor.untyped_storage().pinned = True  # type: ignore[attr-defined]


class Overwritten:
    """Error of using a storage whose memory a CUDA graph writes to again."""

    def __init__(self, device: torch.device, message: str) -> None:
        self.device, self.message = device, message

    def refuse(self) -> None:
        raise RuntimeError(self.message)

    def allocate(self, storage: VirtualStorage) -> None:
        self.refuse()

    def free(self, storage: VirtualStorage) -> None:
        """Its block is free already."""

    def resize(self, storage: VirtualStorage, requested_bytes: int) -> None:
        self.refuse()


class HostMemory:
    """Host memory of big virtual CPU tensors, which is in no account: progress shows it."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.held_bytes = 0

    def allocate(self, storage: VirtualStorage) -> None:
        self.held_bytes += storage.requested_bytes

    def free(self, storage: VirtualStorage) -> None:
        self.held_bytes -= storage.requested_bytes

    def resize(self, storage: VirtualStorage, requested_bytes: int) -> None:
        self.held_bytes += requested_bytes - storage.requested_bytes
        storage.requested_bytes = requested_bytes

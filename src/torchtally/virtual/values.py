"""Which virtual tensors have real values, and the placeholders for those that have none.

A small device tensor keeps its bytes on the host if everything it was computed from had values:
step counters, loss scales, token ids, masks, a toy model as a whole. Any other value that the
script reads (`.item()`, `if t > 0`) is a placeholder, of which the observer is notified.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.virtual.storage import virtual_of

FLOAT_VALUE_BYTES = 8 * 1024
"""Floating-point storages up to this size keep values: scalars and toy models."""

INTEGER_VALUE_BYTES = 8 * 1024 * 1024
"""Integer and bool storages up to this size keep values: token ids, positions, attention masks."""

SMALL_HOST_BYTES = 1024 * 1024
"""CPU factories of floats up to this size make real tensors, however many there are."""

REAL_HOST_BYTES = 4 * 1024 * 1024
"""CPU factories of floats above this size make virtual CPU tensors: a 70B model costs no memory."""

REAL_HOST_TOTAL_BYTES = 64 * 1024 * 1024
"""Of sizes in between, so many bytes are real at a time; those made beyond that are virtual."""

HOST = torch.device("cpu")

PLACEHOLDER_FLOAT = 1.0
PLACEHOLDER_INTEGER = 0
PLACEHOLDER_BOOL = False


def is_approximate(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def keeps_value(dtype: torch.dtype, storage_bytes: int) -> bool:
    limit = FLOAT_VALUE_BYTES if is_approximate(dtype) else INTEGER_VALUE_BYTES
    return storage_bytes <= limit


def real_of(tensor: Tensor) -> Tensor | None:
    """The real host tensor behind a tensor: itself if it is real, None if it has no value.

    The result shares memory with the kept value, so an in-place operator on it updates the value.
    """
    if not private.is_meta(tensor):
        return tensor
    virtual = virtual_of(tensor)
    if virtual is None or virtual.value is None:
        return None
    real = torch.empty(0, dtype=tensor.dtype)
    real.set_(virtual.value, tensor.storage_offset(), tensor.shape, tensor.stride())
    if tensor.is_conj():
        real = real.conj()
    if tensor.is_neg():
        real = private.neg_view(real)
    return real


class OneThread:
    """Context in which torch computes in this thread alone: values are small, and waking its pool
    would cost more than computing them. No generator: every operator on values enters it.
    """

    __slots__ = ("_threads",)

    def __enter__(self) -> None:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        torch.set_num_threads(self._threads)


def give_value(tensor: Tensor, real: Tensor) -> None:
    """Let a virtual tensor that owns its whole storage have the value of a real one."""
    virtual = virtual_of(tensor)
    assert virtual is not None
    virtual.facts = None
    virtual.value = torch.UntypedStorage(virtual.requested_bytes)
    if tensor.numel():
        kept = real_of(tensor)
        assert kept is not None
        with OneThread():
            kept.copy_(real.detach())


def drop_value(tensor: Tensor) -> None:
    virtual = virtual_of(tensor)
    if virtual is not None:
        virtual.forget()


def placeholder(dtype: torch.dtype) -> float | int | bool | complex:
    """What an unknown scalar of this dtype reads as."""
    if dtype is torch.bool:
        return PLACEHOLDER_BOOL
    if dtype.is_complex:
        return complex(PLACEHOLDER_FLOAT)
    if dtype.is_floating_point:
        return PLACEHOLDER_FLOAT
    return PLACEHOLDER_INTEGER


class HostBudget:
    """Bytes of the host's memory for real tensors that could be virtual as well."""

    def __init__(self, total_bytes: int = REAL_HOST_TOTAL_BYTES) -> None:
        self.free_bytes = total_bytes

    def has_room(self, nbytes: int) -> bool:
        """A float tensor of this size is made real."""
        if nbytes <= SMALL_HOST_BYTES:
            return True
        return nbytes <= REAL_HOST_BYTES and nbytes <= self.free_bytes

    def hold(self, tensor: Tensor) -> None:
        """Take a real tensor's bytes until its storage is deleted."""
        if tensor.layout is not torch.strided:
            return  # it has no storage of its own
        storage = tensor.untyped_storage()
        if storage.nbytes() > SMALL_HOST_BYTES:
            storage.held = HeldBytes(self, storage.nbytes())  # type: ignore[attr-defined]


class HeldBytes:
    """A storage's part of the budget, given back when the storage's Python object is deleted."""

    __slots__ = ("budget", "nbytes")

    def __init__(self, budget: HostBudget, nbytes: int) -> None:
        self.budget, self.nbytes = budget, nbytes
        budget.free_bytes -= nbytes

    def __del__(self) -> None:
        self.budget.free_bytes += self.nbytes


STATE_BYTES, OFFSET_STEP = 16, 4
"""Of CUDA's generator (ATen/cuda/CUDAGeneratorImpl.cpp): a seed, an offset, and what a kernel moves
the offset by at least."""

MIXER = 0x9E3779B97F4A7C15
"""2**64 over the golden ratio (Steele et al., "Fast Splittable Pseudorandom Number Generators",
2014): seeds of neighbouring offsets are far apart."""


def packed_state(seed: int, offset: int) -> Tensor:
    """A byte tensor, shape (16,), on the host."""
    packed = struct.pack("<QQ", seed % 2**64, offset % 2**64)
    return torch.frombuffer(bytearray(packed), dtype=torch.uint8)


def unpacked_state(state: Tensor) -> tuple[int, int]:
    """(seed, offset). Raises RuntimeError, as CUDA's generator does."""
    if state.numel() != STATE_BYTES or state.dtype is not torch.uint8:
        raise RuntimeError("RNG state is wrong size")
    seed, offset = struct.unpack("<QQ", bytes(state.tolist()))
    return seed, offset


def seed_at(seed: int, offset: int) -> int:
    """Seed of a host generator that draws what follows from a state."""
    return (seed + offset * MIXER) % 2**64


class RandomState:
    """The virtual GPU's random stream, apart from the host's, as on a real machine.

    It is counter-based, as Philox is: the state is a seed and an offset, and what an operator draws
    follows from both.
    """

    def __init__(self, seed: int = 0) -> None:
        self.manual_seed(seed)

    @property
    def initial_seed(self) -> int:
        return self._seed

    def manual_seed(self, seed: int) -> None:
        self._seed, self._offset = seed % 2**64, 0

    @property
    def state(self) -> Tensor:
        return packed_state(self._seed, self._offset)

    @state.setter
    def state(self, state: Tensor) -> None:
        self._seed, self._offset = unpacked_state(state)

    @contextmanager
    def as_default(self) -> Iterator[None]:
        """Random host operators draw from this stream; the host's own is as before afterwards."""
        host = torch.default_generator.get_state()
        torch.default_generator.manual_seed(seed_at(self._seed, self._offset))
        self._offset += OFFSET_STEP
        try:
            yield
        finally:
            torch.default_generator.set_state(host)


def real_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`(args, kwargs)` with every tensor real and every device the host; None if one is unknown."""
    try:
        reals = {name: real_argument(arg) for name, arg in kwargs.items()} if kwargs else {}
        return tuple(map(real_argument, args)), reals
    except UnknownValueError:
        return None


class UnknownValueError(Exception):
    """A tensor that is needed has no value."""


def real_argument(arg: Any) -> Any:
    if isinstance(arg, Tensor):
        if (tensor := real_of(arg)) is None:
            raise UnknownValueError
        return tensor
    if isinstance(arg, (list, tuple)):
        return list(map(real_argument, arg))
    return HOST if isinstance(arg, torch.device) else arg

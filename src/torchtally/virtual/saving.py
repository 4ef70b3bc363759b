"""Saving, loading and sending virtual tensors: shapes, without bytes.

A checkpoint written in a simulated run holds shape, dtype and device of every virtual tensor. It
loads inside a simulated run; anywhere else loading raises an error that explains this.
"""

import zipfile
from collections.abc import Callable
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.errors import UnsupportedError
from torchtally.virtual import values
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.invocation import META
from torchtally.virtual.script_time import SCRIPT_TIME
from torchtally.virtual.shown_devices import as_device, shown_virtual
from torchtally.virtual.stand_ins import StandIn
from torchtally.virtual.storage import make_virtual


class Loading:
    """The session that virtual tensors are loaded into: None outside a simulated run."""

    mode: VirtualDispatch | None = None
    map_location: Any = None
    storages: dict[int, Tensor] | None = None
    """Storages of the file being loaded, by the number they were saved under."""


def rebuild_virtual_tensor(
    number: int,
    storage_bytes: int,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    device: str,
    requires_grad: bool,
    value: Tensor | None,
) -> Tensor:
    """A tensor as it was saved, in the active session. Raises UnsupportedError without one."""
    if Loading.mode is None:
        raise UnsupportedError(
            "this file was written by a simulated run: it holds the shapes of its tensors, not "
            "their values.\nLoad it inside a simulated run (`tally run`), or write it "
            "again on a real device."
        )
    home = Loading.mode.home_of(mapped_device(torch.device(device)))
    storages = Loading.storages if Loading.storages is not None else {}
    flat = storages.get(number)
    if flat is None:
        flat = torch.empty(storage_bytes, dtype=torch.uint8, device=META)
        if home is not None:
            make_virtual(flat, home)
        storages[number] = flat
    tensor = torch.empty(0, dtype=dtype, device=META)
    tensor.set_(flat.untyped_storage(), offset, shape, stride)
    if value is not None:
        values.give_value(tensor, value)
    return tensor.requires_grad_(requires_grad)


def mapped_device(device: torch.device) -> torch.device:
    """Device to which `torch.load`'s map_location maps a tensor that was saved from `device`."""
    location = Loading.map_location
    if isinstance(location, dict):
        location = location.get(str(device))
    if callable(location):
        return device  # it maps storages, and virtual ones are not passed through it
    return as_device(location) or device


class Located:
    """`map_location` as torch calls it, for the real storages of a file."""

    def __init__(self, saving: "Saving", map_location: Any) -> None:
        self.saving = saving
        self.wanted = map_location

    def __call__(self, storage: torch.UntypedStorage, location: str) -> Any:
        map_location = self.wanted
        if callable(map_location):
            mapped = map_location(storage, location)
            if mapped is not None:
                return mapped
            target = location
        elif isinstance(map_location, dict):
            target = map_location.get(location, location)
        else:
            target = location if map_location is None else map_location
        device = as_device(target)
        if device is not None and device.type == "cuda":
            return self.saving.move(storage, device)
        return torch.serialization.default_restore_location(storage, str(target))


def reduce_tensor(tensor: Tensor) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
    """The function and arguments that pickle stores for a virtual tensor."""
    virtual = shown_virtual(tensor)
    assert virtual is not None
    owns_all = tensor.storage_offset() == 0 and tensor.is_contiguous()
    value = values.real_of(tensor) if owns_all else None
    return rebuild_virtual_tensor, (
        id(virtual),
        virtual.requested_bytes,
        tensor.dtype,
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
        str(virtual.home.device),
        tensor.requires_grad and tensor.is_leaf,
        None if value is None else value.clone(),
    )


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """What a data-loading process gets for a virtual tensor: an expanded zero."""
    return torch.zeros((), dtype=dtype).expand(shape)


class Saving:
    """`torch.save` and `torch.load`, pickling, and safetensors where it is installed."""

    def __init__(self, mode: VirtualDispatch) -> None:
        self.mode = mode
        self.native_reduce: Any = torch.Tensor.__reduce_ex__
        self.native_save = torch.save
        self.native_load = torch.load
        self.native_rebuild: Any = private.rebuild_tensor
        self._saved: dict[int, int] = {}
        """Bytes of the virtual storages in the file that is being saved, by their identity."""

    def stand_ins(self) -> list[StandIn]:
        methods = self

        def reduce_ex(tensor: Tensor, protocol: int) -> Any:
            virtual = shown_virtual(tensor)
            if virtual is None:
                return methods.native_reduce(tensor, protocol)
            methods.mode.host_reads(virtual)
            methods._saved[id(virtual)] = virtual.requested_bytes
            return reduce_tensor(tensor)

        return [
            StandIn(torch.Tensor, "__reduce_ex__", reduce_ex),
            StandIn(torch, "save", self.save),
            StandIn(torch, "load", self.load),
            StandIn(torch.serialization, "save", self.save),
            StandIn(torch.serialization, "load", self.load),
            StandIn(*private.REBUILD_TENSOR, self.rebuild_tensor),
            StandIn(
                torch.UntypedStorage,
                "cuda",
                lambda storage, device=None, non_blocking=False: methods.move(storage, device),
            ),
        ]

    def rebuild_tensor(
        self, storage: Any, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]
    ) -> Tensor:
        """A tensor in a storage that was just loaded."""
        untyped, dtype = private.untyped_storage(storage), storage.dtype
        virtual = getattr(untyped, "virtual", None)
        if virtual is None:
            return self.native_rebuild(storage, offset, shape, stride)  # type: ignore[no-any-return]
        if not values.keeps_value(dtype, virtual.requested_bytes):
            virtual.value = None
        tensor = torch.empty(0, dtype=dtype, device=META)
        return tensor.set_(untyped, offset, shape, stride)

    def save(self, obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        self._saved.clear()
        with SCRIPT_TIME.stopped():
            self.native_save(obj, f, *args, **kwargs)
        if self._saved:
            self.mode.observer.file_saved(f, sum(self._saved.values()))

    def load(self, f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Virtual tensors come back as they were saved, real ones where they belong."""
        if str(f).endswith(".safetensors"):
            if not zipfile.is_zipfile(f):
                return self.native_load(f, map_location, *args, **kwargs)
            with open(f, "rb") as file:  # our own: torch goes by the name
                return self.load(file, map_location, *args, **kwargs)
        is_meta = map_location is not None and str(map_location) == "meta"
        located: Any = map_location if is_meta else Located(self, map_location)
        before = Loading.map_location, Loading.storages
        Loading.map_location, Loading.storages = map_location, {}
        try:
            with SCRIPT_TIME.stopped():
                return self.native_load(f, located, *args, **kwargs)
        finally:
            Loading.map_location, Loading.storages = before

    def move(self, storage: torch.UntypedStorage, device: Any) -> torch.UntypedStorage:
        """A real storage's bytes on the virtual GPU: kept where they are few."""
        target = as_device(device) or torch.device("cuda")
        home = self.mode.home_of(target)
        if home is None or home is self.mode.host or not self.mode.is_active:
            return storage
        flat = torch.empty(storage.nbytes(), dtype=torch.uint8, device=META)
        virtual = make_virtual(flat, home)
        if storage.nbytes() <= values.INTEGER_VALUE_BYTES:
            virtual.value = storage.clone()
        return flat.untyped_storage()


@contextmanager
def send_zeros_to_processes() -> Any:
    """Virtual host tensors reach spawned data loaders as zeros; nothing else changes."""
    table: dict[type, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    before = {kind: table[kind] for kind in (Tensor, torch.nn.Parameter) if kind in table}

    def reduce(tensor: Tensor) -> Any:
        if shown_virtual(tensor) is None:
            return before[type(tensor)](tensor)
        return zeros, (tuple(tensor.shape), tensor.dtype)

    for kind in before:
        ForkingPickler.register(kind, reduce)
    try:
        yield
    finally:
        for kind, reducer in before.items():
            ForkingPickler.register(kind, reducer)

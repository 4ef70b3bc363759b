"""A virtual tensor as Python sees it: its data, its values, its printed form."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.errors import UnsupportedError
from torchtally.virtual.device_memory import DeviceMemory
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.facts import assumption_of, readable, substitute
from torchtally.virtual.invocation import META
from torchtally.virtual.moves import Moves
from torchtally.virtual.placeholder_arrays import PlaceholderArrays
from torchtally.virtual.shown_devices import (
    WRAPPED_ON,
    as_device,
    device,
    device_index,
    is_cpu,
    is_cuda,
    is_meta,
    shown_virtual,
    storage_data_ptr,
    storage_device,
    storage_is_cuda,
)
from torchtally.virtual.stand_ins import StandIn
from torchtally.virtual.storage import VirtualStorage, is_pinned, is_sparse

NUMBERS = (int, float, complex)
NEW = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros")
REAL_ARRAY_BYTES = 64 * 1024 * 1024
"""Larger placeholder arrays are one broadcast element: read-only, but they cost nothing."""


def record_stream(tensor: Tensor, stream: Any) -> None:
    """A stream other than the allocating one uses the tensor (`Tensor.record_stream`)."""
    virtual = shown_virtual(tensor)
    if virtual is not None and isinstance(virtual.home, DeviceMemory):
        virtual.home.record_stream(virtual, stream.stream_id)


class TensorMethods:
    """Replacements of methods of `torch.Tensor` that need a real device."""

    def __init__(self, mode: VirtualDispatch, arrays: PlaceholderArrays) -> None:
        self.mode, self.arrays = mode, arrays
        self.moves = Moves(mode)
        self.data: Any = torch.Tensor.data
        self.native_repr: Any = torch.Tensor.__repr__
        self.native_numpy = torch.Tensor.numpy
        self.native_tolist = torch.Tensor.tolist
        self.native_data_ptr = torch.Tensor.data_ptr
        self.native_deepcopy: Any = torch.Tensor.__deepcopy__
        self.native_new: Any = torch.Tensor.new
        self.native_resize_storage: Any = torch.UntypedStorage.resize_

    def stand_ins(self) -> list[StandIn]:
        replaced: dict[str, Any] = {
            "device": property(device),
            "is_cuda": property(is_cuda),
            "is_cpu": property(is_cpu),
            "is_meta": property(is_meta),
            "get_device": device_index,
            "to": method(self.moves.to),
            "cuda": method(self.moves.cuda),
            "cpu": method(self.moves.cpu),
            "type": method(self.moves.type),
            "type_as": method(lambda tensor, other: self.moves.to(tensor, other)),
            "data": property(self.get_data, self.set_data, self.delete_data),
            "is_pinned": method(self.is_pinned),
            "record_stream": method(record_stream),
            "numpy": method(self.numpy),
            "tolist": method(self.tolist),
            "data_ptr": method(self.data_ptr),
            "new": method(self.new),
            "new_tensor": method(self.new_tensor),
            **{name: self.by_number(getattr(torch.Tensor, name)) for name in NEW},
            "__getitem__": self.getitem(),
            "__setitem__": self.setitem(),
            "__repr__": method(self.repr),
            "__deepcopy__": method(self.deepcopy),
        }
        table = [StandIn(torch.Tensor, name, value) for name, value in replaced.items()]
        table += [
            StandIn(torch.UntypedStorage, "device", property(storage_device)),
            StandIn(torch.UntypedStorage, "is_cuda", property(storage_is_cuda)),
            StandIn(torch.UntypedStorage, "data_ptr", method(storage_data_ptr)),
            StandIn(torch.UntypedStorage, "resize_", method(self.resize_storage)),
            StandIn(*private.PARSE_TO, self.moves.parse_to),
            StandIn(*private.MAKE_WRAPPER, staticmethod(self.make_wrapper)),
            StandIn(*private.HAS_COMPATIBLE_TYPE, self.has_compatible_type),
        ]
        return table

    @staticmethod
    def by_number(native: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """A method that takes a device's number for that CUDA device, as `Factories` do."""

        @wraps(native)
        def factory(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if type(kwargs.get("device")) is int:
                kwargs["device"] = as_device(kwargs["device"])
            return native(tensor, *args, **kwargs)

        return factory

    def make_wrapper(
        self, kind: type[Tensor], size: Any, strides: Any = None, storage_offset: Any = None,
        memory_format: Any = None, dtype: Any = None, layout: Any = torch.strided,
        device: Any = None, *args: Any, **kwargs: Any,
    ) -> Tensor:  # fmt: skip
        """A wrapper for the GPU has the meta device below, as all that it holds.

        Autograd asks the device of each of its results for a guard, which a build without CUDA
        does not have (`InputMetadata`, torch/csrc/autograd/input_metadata.cpp).
        """
        shown = as_device(device)
        is_virtual = shown is not None and shown.type == "cuda"
        place = META if is_virtual else device
        positional = (size, strides, storage_offset, memory_format, dtype, layout, place, *args)
        wrapper = private.make_wrapper(kind, *positional, **kwargs)
        if is_virtual:
            setattr(wrapper, WRAPPED_ON, self.moves.on_current(shown))
        return wrapper

    # `param.data = ...` keeps the parameter's identity when a module moves to the device.

    def get_data(self, tensor: Tensor) -> Tensor:
        data: Tensor = self.data.__get__(tensor)
        return data

    def set_data(self, tensor: Tensor, new: Tensor) -> None:
        was_meta = private.is_meta(tensor)
        if was_meta == private.is_meta(new):
            self.data.__set__(tensor, new)
            return
        # `VariableHooks::set_data` (torch/csrc/autograd/variable.cpp) refuses another kind of
        # TensorImpl. Swapping the TensorImpls below the two Python objects keeps the parameter's
        # identity for optimizers and modules.
        holder = new.detach()
        if holder is new or holder.untyped_storage() is None:
            raise UnsupportedError("cannot set .data of this tensor on the virtual GPU")
        holder.requires_grad_(tensor.requires_grad)
        if tensor.grad is not None:
            holder.grad = self.moves.move(tensor.grad, new.device)
        private.swap_contents(tensor, holder)

    def delete_data(self, tensor: Tensor) -> None:
        self.data.__delete__(tensor)

    def has_compatible_type(self, tensor: Tensor, other: Tensor) -> bool:
        """Host and virtual tensors are interchangeable under `.data`, as host and CUDA ones are."""
        kinds = {private.true_device(t).type for t in (tensor, other)}
        if kinds == {"cpu", "meta"}:
            meta = tensor if private.is_meta(tensor) else other
            return shown_virtual(meta) is not None
        return private.has_compatible_type(tensor, other)

    # Indexing. torch makes an index tensor of a list on the indexed tensor's device
    # (`sequenceToVariable`, torch/csrc/autograd/python_variable_indexing.cpp): on meta, and its
    # values, which are known, would be lost.

    def getitem(self) -> Callable[..., Any]:
        native: Any = torch.Tensor.__getitem__

        def getitem(tensor: Tensor, index: Any) -> Any:
            if has_sequence(index) and shown_virtual(tensor) is not None:
                index = with_tensors(index, tensor)
            return native(tensor, index)

        return getitem

    def setitem(self) -> Callable[..., Any]:
        native: Any = torch.Tensor.__setitem__

        def setitem(tensor: Tensor, index: Any, value: Any) -> None:
            if shown_virtual(tensor) is not None:
                if has_sequence(index):
                    index = with_tensors(index, tensor)
                if isinstance(value, NUMBERS):
                    # A tensor of the host, which fills: `valueToTensor` in the same file. It would
                    # be one of meta, and copied.
                    value = torch.tensor(value, dtype=tensor.dtype)
            native(tensor, index, value)

        return setitem

    # Values.

    def is_pinned(self, tensor: Tensor, device: Any = None) -> bool:
        return is_pinned(tensor)

    def numpy(self, tensor: Tensor, *, force: bool = False) -> Any:
        """A real tensor's own array; else placeholders, which the report lists."""
        virtual = shown_virtual(tensor)
        if virtual is None:
            return self.native_numpy(tensor, force=force)
        self.mode.host_reads(virtual)
        if tensor.is_cuda and not force:
            raise TypeError(
                f"can't convert {tensor.device} device type tensor to numpy. Use Tensor.cpu() to "
                "copy the tensor to host memory first."
            )
        if tensor.requires_grad and not force:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. Use "
                "tensor.detach().numpy() instead."
            )
        real = readable(tensor)
        if real is not None:
            self.say_assumed("aten.numpy", virtual)
            return self.native_numpy(real, force=force)
        value = substitute(tensor)
        self.mode.observer.placeholder_given("aten.numpy", f"{value} in every element")
        element = self.native_numpy(torch.full((), value, dtype=tensor.dtype))
        array = np.broadcast_to(element, tuple(tensor.shape))
        array = array.copy() if array.nbytes <= REAL_ARRAY_BYTES else array
        self.arrays.add(array)
        return array

    def tolist(self, tensor: Tensor) -> Any:
        virtual = shown_virtual(tensor)
        if virtual is None:
            return self.native_tolist(tensor)
        self.mode.host_reads(virtual)
        if tensor.dim() == 0:
            return tensor.item()
        real = readable(tensor)
        if real is not None:
            self.say_assumed("aten.tolist", virtual)
            return self.native_tolist(real)
        value = substitute(tensor)
        self.mode.observer.placeholder_given("aten.tolist", f"{value} in every element")
        return np.full(tuple(tensor.shape), value).tolist()

    def say_assumed(self, reader: str, virtual: VirtualStorage) -> None:
        """Notify the observer that the values read were assumed."""
        assumption = assumption_of([virtual])
        if assumption is not None:
            self.mode.observer.assumption_read(reader, assumption)

    def data_ptr(self, tensor: Tensor) -> int:
        virtual = shown_virtual(tensor)
        if virtual is None:
            return int(self.native_data_ptr(tensor))
        return virtual.address + int(tensor.storage_offset()) * tensor.element_size()

    def new(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The legacy constructor: sizes give an empty tensor, anything else is data."""
        if shown_virtual(tensor) is None:
            return self.native_new(tensor, *args, **kwargs)  # type: ignore[no-any-return]
        if is_sparse(tensor) and args and isinstance(args[0], Tensor):
            return torch.sparse_coo_tensor(*args)  # indices, values and size
        if all(isinstance(arg, int) for arg in args) or isinstance(args[0], torch.Size):
            return torch.empty(*args, dtype=tensor.dtype, device=tensor.device)
        return self.new_tensor(tensor, args[0])

    def resize_storage(self, storage: torch.UntypedStorage, size: int) -> Any:
        result = self.native_resize_storage(storage, size)
        virtual = getattr(storage, "virtual", None)
        if virtual is not None and virtual.requested_bytes != size:
            virtual.resize(size)
        return result

    def new_tensor(self, tensor: Tensor, data: Any, *, dtype: Any = None, device: Any = None,
                   requires_grad: bool = False, **kwargs: Any) -> Tensor:  # fmt: skip
        if isinstance(data, Tensor):
            data = data.detach().clone()
        target = as_device(device) or tensor.device
        tensor_made = torch.as_tensor(data, dtype=dtype or tensor.dtype).to(target)
        return tensor_made.requires_grad_(requires_grad)

    def repr(self, tensor: Tensor, *, tensor_contents: Any = None) -> str:
        """Text as torch prints a CUDA tensor; without a value, its size and dtype in place of
        it.
        """
        virtual = shown_virtual(tensor)
        if virtual is None:
            return str(self.native_repr(tensor, tensor_contents=tensor_contents))
        self.mode.host_reads(virtual)
        real = readable(tensor)
        if real is not None:
            self.say_assumed("aten.repr", virtual)
        where = "" if tensor.is_cpu else f", device='{virtual.home.device}'"
        suffix = ", requires_grad=True" if tensor.requires_grad and tensor.is_leaf else ""
        if tensor.grad_fn is not None:
            suffix = f", grad_fn=<{type(tensor.grad_fn).__name__}>"
        if real is None:
            size = f"size={tuple(tensor.shape)}, dtype={tensor.dtype}"
            return f"tensor(...{where}, {size}{suffix})"
        printed = self.native_repr(real.detach())[:-1]
        at = min(
            (place for word in (", size=(", ", dtype=") if (place := printed.rfind(word)) > 0),
            default=len(printed),
        )
        return f"{printed[:at]}{where}{printed[at:]}{suffix})"

    def deepcopy(self, tensor: Tensor, memo: dict[Any, Any]) -> Tensor:
        """A copy with storage of its own, shared within one deepcopy as the original shares it."""
        virtual = shown_virtual(tensor)
        if virtual is None or id(tensor) in memo:
            return self.native_deepcopy(tensor, memo)  # type: ignore[no-any-return]
        if not tensor.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment."
            )
        key = ("storage", id(tensor.untyped_storage()), tensor.dtype)
        with torch.no_grad():
            if key not in memo:
                length = virtual.requested_bytes // tensor.element_size()
                memo[key] = torch.as_strided(tensor.detach(), (length,), (1,), 0).clone()
            flat: Tensor = memo[key]
            copy = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        copy = copy.detach()
        copy.requires_grad_(tensor.requires_grad)
        if type(tensor) is not Tensor:
            copy = copy.as_subclass(type(tensor))
        memo[id(tensor)] = copy
        if tensor.grad is not None:
            copy.grad = self.deepcopy(tensor.grad, memo)
        return copy


def method(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that binds as a method does; a bound method of ours would not."""

    def bound(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    bound.__name__ = getattr(function, "__name__", "bound")
    return bound


SEQUENCES = (list, range, np.ndarray)


def has_sequence(index: Any) -> bool:
    if type(index) is tuple:
        return any(isinstance(item, SEQUENCES) for item in index)
    return isinstance(index, SEQUENCES)


def with_tensors(index: Any, tensor: Tensor) -> Any:
    """An index with its lists made tensors of the indexed tensor's device."""
    if type(index) is tuple:
        return tuple(with_tensors(item, tensor) for item in index)
    if not isinstance(index, SEQUENCES):
        return index
    if any(isinstance(item, (slice, Tensor, type(None), type(Ellipsis))) for item in index):
        return index  # torch takes such a list for a tuple
    numbers = list(index) if isinstance(index, range) else index
    return torch.as_tensor(numbers, device=tensor.device)

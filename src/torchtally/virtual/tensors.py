"""A virtual tensor as Python sees it: its device, copies between devices, its printed form.

The properties are set on `torch.Tensor` itself, so they hold in every thread, in hooks and in
library code. Inside an operator torch's shape functions read them, too, and get the meta device.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.errors import UnsupportedError
from torchtally.virtual import nested
from torchtally.virtual.depth import INSIDE
from torchtally.virtual.device_memory import DeviceMemory
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.facts import assumption_of, readable, substitute
from torchtally.virtual.invocation import META
from torchtally.virtual.stand_ins import StandIn
from torchtally.virtual.storage import VirtualStorage, is_pinned, is_sparse, virtual_of

REAL_ARRAY_BYTES = 64 * 1024 * 1024
"""Larger placeholder arrays are one broadcast element: read-only, but they cost nothing."""


WRAPPED_ON = "_wrapped_on"
"""The attribute of a wrapper subclass's tensor with the device that it was made for."""


def shown_virtual(tensor: Tensor) -> VirtualStorage | None:
    """The virtual storage as Python sees it: None inside an operator."""
    if INSIDE.depth or not private.is_meta(tensor):
        return None
    return virtual_of(private.unwrap(tensor))


def device(tensor: Tensor) -> torch.device:
    virtual = shown_virtual(tensor)
    if virtual is not None:
        return virtual.home.device
    if type(tensor) not in private.PLAIN_TENSORS and not INSIDE.depth:
        wrapped_on: torch.device | None = vars(tensor).get(WRAPPED_ON)
        if wrapped_on is not None:
            return wrapped_on
        held = private.tensors_inside(tensor)  # a DTensor is made in C++
        if held and held[0] is not tensor:
            return device(held[0])
    return private.true_device(tensor)


def is_cuda(tensor: Tensor) -> bool:
    return device(tensor).type == "cuda"


def is_cpu(tensor: Tensor) -> bool:
    return device(tensor).type == "cpu"


def is_meta(tensor: Tensor) -> bool:
    return device(tensor).type == "meta"


def device_index(tensor: Tensor) -> int:
    """`get_device()`: the GPU's number, -1 on the host."""
    index = device(tensor).index
    return -1 if index is None or not is_cuda(tensor) else index


def as_device(device: Any) -> torch.device | None:
    """A device as users write it: "cuda:1", 1, torch.device; None for anything else."""
    if isinstance(device, torch.device):
        return device
    if isinstance(device, str):
        return torch.device(device)
    if isinstance(device, int) and not isinstance(device, bool):
        return torch.device("cuda", device)
    return None


def record_stream(tensor: Tensor, stream: Any) -> None:
    """A stream other than the allocating one uses the tensor (`Tensor.record_stream`)."""
    virtual = shown_virtual(tensor)
    if virtual is not None and isinstance(virtual.home, DeviceMemory):
        virtual.home.record_stream(virtual, stream.stream_id)


class DeviceCopy(torch.autograd.Function):
    """A copy between devices; its gradient goes back to where the tensor came from.

    `ToCopyBackward0` (`_to_copy` in tools/autograd/derivatives.yaml) copies the gradient to
    `self.options()`, whose device is meta for host and GPU alike.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, methods: "TensorMethods", keywords: Any) -> Tensor:
        ctx.here, ctx.dtype, ctx.methods = tensor.device, tensor.dtype, methods
        with private.below_autograd():
            return private.to_copy(tensor, **keywords)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.methods.move(gradient, ctx.here, ctx.dtype), None, None


class TensorMethods:
    """Replacements of methods of `torch.Tensor` that need a real device."""

    def __init__(self, mode: VirtualDispatch) -> None:
        self.mode = mode
        self.data: Any = torch.Tensor.data
        self.native_to: Any = torch.Tensor.to
        self.native_repr: Any = torch.Tensor.__repr__
        self.native_numpy = torch.Tensor.numpy
        self.native_tolist = torch.Tensor.tolist
        self.native_data_ptr = torch.Tensor.data_ptr
        self.native_deepcopy: Any = torch.Tensor.__deepcopy__
        self.native_type = torch.Tensor.type
        self.native_new: Any = torch.Tensor.new
        self.native_resize_storage: Any = torch.UntypedStorage.resize_

    def stand_ins(self) -> list[StandIn]:
        replaced: dict[str, Any] = {
            "device": property(device),
            "is_cuda": property(is_cuda),
            "is_cpu": property(is_cpu),
            "is_meta": property(is_meta),
            "get_device": device_index,
            "to": method(self.to),
            "cuda": method(self.cuda),
            "cpu": method(self.cpu),
            "type": method(self.type),
            "type_as": method(lambda tensor, other: self.to(tensor, other)),
            "data": property(self.get_data, self.set_data, self.delete_data),
            "is_pinned": method(self.is_pinned),
            "record_stream": method(record_stream),
            "numpy": method(self.numpy),
            "tolist": method(self.tolist),
            "data_ptr": method(self.data_ptr),
            "new": method(self.new),
            "new_tensor": method(self.new_tensor),
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
            StandIn(*private.PARSE_TO, self.parse_to),
            StandIn(*private.MAKE_WRAPPER, staticmethod(self.make_wrapper)),
            StandIn(*private.HAS_COMPATIBLE_TYPE, self.has_compatible_type),
        ]
        return table

    # Moves between devices.

    def to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`Tensor.to` in all its forms.

        The native one initialises CUDA for a "cuda" argument (python_variable_methods.cpp).
        """
        other = args[0] if args and isinstance(args[0], Tensor) else kwargs.get("other")
        if other is not None:
            rest = args[1:] if args and args[0] is other else args
            rest_kwargs = {name: arg for name, arg in kwargs.items() if name != "other"}
            return self.to(tensor, other.device, other.dtype, *rest, **rest_kwargs)
        copies = kwargs.pop("copy", False)
        flags = [at for at, arg in enumerate(args) if isinstance(arg, bool)]
        if len(flags) > 1:  # (..., non_blocking, copy)
            copies = args[flags[1]]
            args = args[: flags[1]]
        target, dtype, non_blocking, memory_format = self.parse_to(*args, **kwargs)
        return self.move(
            tensor, target, dtype, copies=copies, non_blocking=non_blocking, layout=memory_format
        )

    def parse_to(self, *args: Any, **kwargs: Any) -> Any:
        """(device, dtype, non_blocking, memory_format); a number is a GPU's index.

        Without a CUDA build torch would take the number for another accelerator's.
        """
        if args and isinstance(args[0], Tensor):
            return args[0].device, args[0].dtype, args[1] if len(args) > 1 else False, None
        if args and type(args[0]) is int:
            args = (torch.device("cuda", args[0]), *args[1:])
        if type(kwargs.get("device")) is int:
            kwargs = {**kwargs, "device": torch.device("cuda", kwargs["device"])}
        return private.parse_to(*args, **kwargs)

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
            setattr(wrapper, WRAPPED_ON, self.on_current(shown))
        return wrapper

    def on_current(self, device: torch.device | None) -> torch.device | None:
        """`torch.device("cuda")` has no index and equals no tensor's device: the current one's."""
        if device is not None and device.type == "cuda" and device.index is None:
            return torch.device("cuda", self.mode.current_device)
        return device

    def move(
        self,
        tensor: Tensor,
        target: torch.device | None,
        dtype: torch.dtype | None = None,
        *,
        copies: bool = False,
        non_blocking: bool = False,
        layout: torch.memory_format | None = None,
    ) -> Tensor:
        here = tensor.device
        if "cuda" in (here.type, None if target is None else target.type):
            self.mode.check_place()
        target = self.on_current(target)
        if tensor.is_nested and target is not None and target.type == "cuda":
            nested.check_layout(tensor.layout)
        if here.type == "meta" and target is not None and target.type != "meta":
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        if target is not None and target.type == "meta" and here.type != "meta":
            kind = dtype or tensor.dtype
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind, device=META)
        if target is None or target == here or (target.type == here.type == "cpu"):
            # Nothing moves: torch's own `to`, which gives back the tensor itself if it can.
            kept = layout or torch.preserve_format
            to: Callable[..., Tensor] = self.native_to
            return to(tensor, dtype or tensor.dtype, copy=copies, memory_format=kept)
        keywords = {
            "dtype": dtype, "device": target, "non_blocking": non_blocking, "memory_format": layout
        }  # fmt: skip
        if tensor.requires_grad and torch.is_grad_enabled():
            moved: Tensor = DeviceCopy.apply(tensor, self, keywords)  # type: ignore[no-untyped-call]
            return moved
        return private.to_copy(tensor, **keywords)

    def cuda(self, tensor: Tensor, device: Any = None, non_blocking: bool = False,
             memory_format: Any = None) -> Tensor:  # fmt: skip
        target = as_device(device) or torch.device("cuda")
        return self.move(tensor, target, non_blocking=non_blocking, layout=memory_format)

    def cpu(self, tensor: Tensor, memory_format: Any = None) -> Tensor:
        return self.move(tensor, torch.device("cpu"), layout=memory_format)

    def type(self, tensor: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
        """`type()` names the tensor's legacy type; `type("torch.cuda.HalfTensor")` moves it."""
        if dtype is None:
            name: str = self.native_type(torch.empty(0, dtype=tensor.dtype))
            return name.replace("torch.", "torch.cuda.") if tensor.is_cuda else name
        name = dtype if isinstance(dtype, str) else f"{dtype.__module__}.{dtype.__name__}" if (
            isinstance(dtype, type)
        ) else ""  # fmt: skip
        if not name:
            return self.native_to(tensor, dtype)
        target = torch.device("cuda" if ".cuda." in name else "cpu")
        element = self.native_type(torch.empty(0), name.replace(".cuda", "")).dtype
        return self.move(tensor, target, element, non_blocking=non_blocking)

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
            holder.grad = self.move(tensor.grad, new.device)
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
            if has_sequence(index) and shown_virtual(tensor) is not None:
                index = with_tensors(index, tensor)
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
        return array.copy() if array.nbytes <= REAL_ARRAY_BYTES else array

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
        """As torch prints a CUDA tensor; without a value, its size and dtype in place of it."""
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


BASE_STORAGE_DEVICE = private.StorageBase.device
BASE_STORAGE_POINTER = private.StorageBase.data_ptr


def shown_storage(storage: torch.UntypedStorage) -> VirtualStorage | None:
    return None if INSIDE.depth else getattr(storage, "virtual", None)


def storage_device(storage: torch.UntypedStorage) -> torch.device:
    virtual = shown_storage(storage)
    device: torch.device = (
        BASE_STORAGE_DEVICE.__get__(storage) if virtual is None else virtual.home.device
    )
    return device


def storage_is_cuda(storage: torch.UntypedStorage) -> bool:
    return storage_device(storage).type == "cuda"


def storage_data_ptr(storage: torch.UntypedStorage) -> int:
    virtual = shown_storage(storage)
    return int(BASE_STORAGE_POINTER(storage)) if virtual is None else virtual.address

"""Where every operator of the script arrives, below autograd: the virtual device's executor.

The mode decides which device a call belongs to, runs it on meta tensors, gives new storages to
their device, keeps small values, and tells the observer. Operators that need more than that have a
handler of its own in `SPECIAL` (see `special.py`).
"""

import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from torchtally.errors import UnsupportedError
from torchtally.virtual import kernels, private, values
from torchtally.virtual.operators import Operator, learn
from torchtally.virtual.shapes import SHAPES
from torchtally.virtual.storage import (
    DeviceMemory,
    HostMemory,
    StorageObserver,
    VirtualStorage,
    make_virtual,
    virtual_of,
)

META = torch.device("meta")
CPU = torch.device("cpu")


class Observer(StorageObserver, Protocol):
    """Told what runs on the virtual GPU. The tracer is one; `Nobody` listens to nothing."""

    def operator_ran(
        self,
        operator: Operator,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[Tensor],
        outputs: list[Tensor],
    ) -> None: ...

    def host_operator_ran(self) -> None: ...

    def placeholder_given(self, operator: str, given: str) -> None: ...

    def noted(self, text: str) -> None: ...


class Nobody:
    """An observer that takes no notes."""

    def storage_born(self, storage: VirtualStorage) -> None: ...
    def storage_died(self, storage: VirtualStorage) -> None: ...
    def operator_ran(self, *facts: Any) -> None: ...
    def host_operator_ran(self) -> None: ...
    def placeholder_given(self, operator: str, given: str) -> None: ...
    def noted(self, text: str) -> None: ...


class Inside(threading.local):
    """How deep this thread is inside an operator, where tensors must tell torch the truth."""

    depth = 0


INSIDE = Inside()

Handler = Callable[["VirtualDispatch", Operator, tuple[Any, ...], dict[str, Any]], Any]
SPECIAL: dict[OpOverload, Handler] = {}
"""Operators that are more than shapes: filled by `special.py`."""

MIXES_DEVICES = frozenset(
    ("aten.copy_", "aten._to_copy", "aten.index", "aten.index_put", "aten.index_put_",
     "aten._index_put_impl_", "aten._foreach_copy_", "aten.set_", "aten._fused_adam_",
     "aten._fused_adamw_", "aten._fused_sgd_", "aten._foreach_copy",
     "aten.is_same_size", "aten._has_compatible_shallow_copy_type", "aten.convolution_backward"),
)  # fmt: skip
"""Operators that take host tensors of any shape beside device tensors."""

OVERWRITES = frozenset(
    ("aten.copy_", "aten.fill_", "aten.zero_", "aten.normal_", "aten.uniform_", "aten.set_"),
)
"""In-place operators whose result does not depend on what was there before."""


def tensors_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Every tensor argument in order, those of a list one after another."""
    found = []
    for arg in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(arg, Tensor):
            found.append(arg)
        elif isinstance(arg, (list, tuple)):
            found += [item for item in arg if isinstance(item, Tensor)]
    return found


def replace_tensors(arg: Any, replacement: dict[int, Tensor]) -> Any:
    if isinstance(arg, Tensor):
        return replacement.get(id(arg), arg)
    if isinstance(arg, (list, tuple)):
        return type(arg)(replace_tensors(item, replacement) for item in arg)
    return arg


class VirtualDispatch(TorchDispatchMode):
    """Executes operators for the virtual GPUs of one session. One object serves all threads."""

    def __init__(self, gpus: list[DeviceMemory], host: HostMemory, observer: Observer) -> None:
        super().__init__()
        self.gpus = gpus
        self.host = host
        self.observer = observer
        self.random = [values.RandomState() for _ in gpus]
        self.current_device = 0
        self.is_active = True
        self.nonzero_fraction = 1.0
        """Share of a mask assumed true where a shape depends on values nobody has."""
        self.last_home: DeviceMemory | HostMemory | None = None
        """Where the last operator's results went: a backward formula's own factories go there."""
        self._operators: dict[OpOverload, Operator] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing compiles here: torch's guard against it would import the compiler (1.3 s)."""
        return False

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self.is_active:
            return in_child(func, args, kwargs)
        operator = self._operators.get(func) or self.operator(func)
        handler = SPECIAL.get(func)
        if handler is not None:
            return handler(self, operator, args, kwargs)
        return self.run(operator, args, kwargs)

    def leave_in_child(self) -> None:
        """This is a forked process: run everything for real, count nothing."""
        self.is_active = False
        self.observer = Nobody()
        for gpu in self.gpus:
            gpu.observer = None
        Inside.depth = INSIDE.depth = 1  # in every thread, tensors tell the truth

    def operator(self, overload: OpOverload) -> Operator:
        """What is known of an overload, learnt the first time."""
        found = self._operators.get(overload)
        if found is None:
            found = self._operators[overload] = learn(overload)
        return found

    def home_of(self, device: torch.device) -> DeviceMemory | HostMemory | None:
        """Who keeps the storages of a device; None for devices the user means as they are."""
        if device.type == "cuda":
            index = self.current_device if device.index is None else device.index
            if index >= len(self.gpus):
                raise RuntimeError(
                    "CUDA error: invalid device ordinal\n"
                    f"cuda:{index} was asked for; this run simulates {len(self.gpus)} GPU(s)."
                )
            return self.gpus[index]
        return self.host if device.type == "cpu" else None

    def run(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call on whichever device its tensors and its `device` argument name."""
        inputs = tensors_of(args, kwargs)
        home: Any = None
        has_real = False
        for tensor in inputs:
            virtual = virtual_of(tensor)
            if virtual is None:
                has_real = has_real or not private.is_meta(tensor)
            elif home is None or home is self.host:
                home = virtual.home
            elif virtual.home is not home and virtual.home is not self.host:
                self.check_same_device(operator, inputs)
        device = kwargs.get("device")
        if device is None:
            result_home = home
        elif device.type == "meta":
            # Options taken from a virtual tensor in C++ say "meta"; so does the user who means it.
            if home is None and inside_backward():
                home = self.last_home
            if home is None:
                return func_as_is(operator, args, kwargs)
            result_home = home
        else:
            result_home = self.home_of(device)
            home = home or (result_home if result_home is not self.host else None)
        if home is None:
            return self.run_on_host(operator, args, kwargs, inputs)
        if home is not self.host and has_host_tensors(inputs, self.host, has_real):
            self.check_same_device(operator, inputs)
        return self.run_virtual(operator, args, kwargs, inputs, result_home, has_real)

    def check_same_device(self, operator: Operator, inputs: list[Tensor]) -> None:
        """Raise PyTorch's own error when a call mixes devices and may not."""
        if operator.name in MIXES_DEVICES:
            return
        devices: dict[str, None] = {}
        for tensor in inputs:
            if tensor.dim() == 0 and not operator.name.startswith("aten._foreach"):
                continue  # a scalar may come from the host
            virtual = virtual_of(tensor)
            devices[str(tensor.device if virtual is None else virtual.home.device)] = None
        if len(devices) > 1:
            first, second, *_ = devices
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{first} and {second}! (when running {operator.name})"
            )

    def run_on_host(
        self,
        operator: Operator,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[Tensor],
    ) -> Any:
        """A call without virtual tensors: real, but for big float factories."""
        self.observer.host_operator_ran()
        pinned = kwargs.get("pin_memory")
        if pinned:
            kwargs = {**kwargs, "pin_memory": False}
        if operator.is_factory and kwargs.get("device") != META:
            result = self.run_host_factory(operator, args, kwargs)
        else:
            result = operator.overload(*args, **kwargs)
        if pinned and isinstance(result, Tensor):
            result.untyped_storage().pinned = True  # type: ignore[attr-defined]
        return result

    def run_host_factory(
        self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A CPU factory: virtual if it makes many floats, which nobody will look at one by one."""
        shape = args[0] if args and isinstance(args[0], (list, tuple)) else None
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        if shape is not None and values.is_approximate(dtype):
            elements = 1
            for size in shape:
                elements *= size
            if elements * dtype.itemsize > values.REAL_HOST_BYTES:
                meta = operator.overload(*args, **{**kwargs, "device": META})
                make_virtual(meta, self.host)
                return meta
        return operator.overload(*args, **kwargs)

    def run_virtual(
        self,
        operator: Operator,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[Tensor],
        result_home: Any,
        has_real: bool,
    ) -> Any:
        """Run on meta tensors; results belong to `result_home`."""
        if operator.is_composite and operator.overload not in SHAPES:
            branch = kernels.branch_of(operator.overload)
            with self:
                return branch(*args, **kwargs)
        self.last_home = result_home
        meta_args, meta_kwargs = args, kwargs
        if has_real:
            stand_in = {
                id(tensor): torch.empty_strided(
                    tensor.shape, tensor.stride(), dtype=tensor.dtype, device=META
                )
                for tensor in inputs
                if not private.is_meta(tensor)
            }
            meta_args = replace_tensors(args, stand_in)
            meta_kwargs = {name: replace_tensors(arg, stand_in) for name, arg in kwargs.items()}
        if "device" in kwargs or "pin_memory" in kwargs or "generator" in kwargs:
            meta_kwargs = without_device(meta_kwargs)
        result = self.execute(operator, meta_args, meta_kwargs)
        return self.finish(operator, args, kwargs, inputs, result, result_home)

    def execute(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operator on meta tensors, where torch must see them as what they are."""
        function = SHAPES.get(operator.overload, operator.overload)
        INSIDE.depth += 1
        try:
            return function(*args, **kwargs)
        except NotImplementedError as error:
            raise UnsupportedError(
                f"{operator.overload} has no shape function in torch {torch.__version__}, so the "
                "virtual GPU cannot run it.\nReplace the operator, or run this part on the CPU."
            ) from error
        finally:
            INSIDE.depth -= 1

    def finish(
        self,
        operator: Operator,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[Tensor],
        result: Any,
        home: Any,
    ) -> Any:
        """Give new storages to their device, keep values, and tell the observer."""
        if isinstance(result, Tensor):
            outputs = [result]
        elif isinstance(result, (tuple, list)):
            outputs = [item for item in result if isinstance(item, Tensor)]
        else:
            outputs = []
        is_new = False
        for tensor in outputs:
            storage = tensor.untyped_storage()
            if getattr(storage, "virtual", None) is None:
                storage.virtual = VirtualStorage(home, storage.nbytes())  # type: ignore[attr-defined]
                is_new = True
        if operator.is_mutating:
            for tensor in inputs:
                virtual = virtual_of(tensor)
                if virtual is not None:
                    nbytes = tensor.untyped_storage().nbytes()
                    if nbytes != virtual.requested_bytes:
                        virtual.resize(nbytes)
        on_device = home is not self.host or any(
            (virtual := virtual_of(tensor)) is not None and virtual.home is not self.host
            for tensor in inputs
        )
        if on_device:
            self.observer.operator_ran(operator, args, kwargs, inputs, outputs)
        else:
            self.observer.host_operator_ran()
        if is_new or operator.is_mutating:
            return self.keep_values(operator, args, kwargs, inputs, outputs, result, home)
        return result

    def keep_values(
        self,
        operator: Operator,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[Tensor],
        outputs: list[Tensor],
        result: Any,
        home: Any,
    ) -> Any:
        """Compute the real values of a call whose inputs all have one; drop overwritten ones."""
        written = inputs[:1] if operator.is_mutating else []
        if operator.name in OVERWRITES:
            revive(written[0])
        if all(map(has_value, inputs)) and all(map(may_have_value, outputs)):
            real = self.compute(operator, args, kwargs)
            if real is not None:
                if operator.is_mutating:
                    return result
                reals = [real] if isinstance(real, Tensor) else [
                    item for item in real if isinstance(item, Tensor)
                ]  # fmt: skip
                if home is self.host:
                    return real
                for tensor, value in zip(outputs, reals, strict=True):
                    give_value_of(tensor, value)
                return result
        if operator.is_mutating:
            for name, tensor in named_tensors(operator, args, kwargs):
                if name in operator.written:
                    values.drop_value(tensor)
        return result

    def compute(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call on real host tensors, or None where it cannot be had."""
        found = values.real_arguments(args, kwargs)
        if found is None:
            return None
        real_args, real_kwargs = found
        real_kwargs.pop("pin_memory", None)
        if real_kwargs.get("generator") is not None:
            real_kwargs["generator"] = None
        try:
            if operator.is_random:
                with self.random[self.current_device].as_default():
                    return operator.overload(*real_args, **real_kwargs)
            return operator.overload(*real_args, **real_kwargs)
        except (RuntimeError, NotImplementedError):
            return None  # an operator that only the device has


def in_child(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator in a forked worker: what it makes of virtual host data is real zeros."""
    result = func(*args, **kwargs)
    if any(virtual_of(tensor) is not None for tensor in tensors_of(args, kwargs)):
        return torch.utils._pytree.tree_map_only(
            Tensor,
            lambda t: torch.zeros(t.shape, dtype=t.dtype) if private.is_meta(t) else t,
            result,
        )
    return result


def inside_backward() -> bool:
    return private.current_autograd_node() is not None


def func_as_is(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call for the meta device itself: the user's own meta tensors are left alone."""
    INSIDE.depth += 1
    try:
        return operator.overload(*args, **kwargs)
    finally:
        INSIDE.depth -= 1


def without_device(kwargs: dict[str, Any]) -> dict[str, Any]:
    kept = {name: arg for name, arg in kwargs.items() if name not in ("pin_memory", "generator")}
    if kept.get("device") is not None:
        kept["device"] = META
    return kept


def has_host_tensors(inputs: list[Tensor], host: HostMemory, has_real: bool) -> bool:
    return has_real or any(
        (virtual := virtual_of(tensor)) is not None and virtual.home is host for tensor in inputs
    )


def has_value(tensor: Tensor) -> bool:
    if not private.is_meta(tensor):
        return True
    virtual = virtual_of(tensor)
    return virtual is not None and virtual.value is not None


def may_have_value(tensor: Tensor) -> bool:
    virtual = virtual_of(tensor)
    return virtual is not None and (
        virtual.value is not None or values.keeps_value(tensor.dtype, virtual.requested_bytes)
    )


def give_value_of(tensor: Tensor, real: Tensor) -> None:
    virtual = virtual_of(tensor)
    if virtual is not None and virtual.value is None:
        values.give_value(tensor, real)


def revive(tensor: Tensor) -> None:
    """A small storage about to be overwritten as a whole may have a value again."""
    virtual = virtual_of(tensor)
    if (
        virtual is not None
        and virtual.value is None
        and values.keeps_value(tensor.dtype, virtual.requested_bytes)
        and tensor.numel() * tensor.element_size() == virtual.requested_bytes
    ):
        virtual.value = torch.UntypedStorage(virtual.requested_bytes)


def named_tensors(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, Tensor]]:
    """Every tensor argument with the name of its argument."""
    found = []
    for name, arg in (*zip(operator.arguments, args, strict=False), *kwargs.items()):
        if isinstance(arg, Tensor):
            found.append((name, arg))
        elif isinstance(arg, (list, tuple)):
            found += [(name, item) for item in arg if isinstance(item, Tensor)]
    return found

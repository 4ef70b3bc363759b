"""Values of small tensors: computed on the host beside the shapes while all inputs have one."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.virtual import values
from torchtally.virtual.invocation import Invocation, tensors_in
from torchtally.virtual.observer import Observer
from torchtally.virtual.storage import HostMemory, virtual_of

OVERWRITES = frozenset(["aten.copy_", "aten.fill_", "aten.zero_", "aten.normal_", "aten.uniform_"])
"""In-place operators whose result does not depend on what was there before."""


class ValueKeeper:
    """Carries values from a call's inputs to its results. `random` is the device's generator."""

    def __init__(
        self, host: HostMemory, observer: Observer, random: Callable[[], values.RandomState]
    ) -> None:
        self.host = host
        self.observer = observer
        self.random = random

    def keep(self, call: Invocation, outputs: Any, result: Any, home: Any) -> Any:
        """Compute the values of a call whose inputs all have one; drop those overwritten.

        Returns the result, which on the host is the real tensor where there is one.
        """
        is_mutating = call.operator.is_mutating
        # `copy_` and its like do not read their target: an unknown value does not stay unknown.
        if call.operator.name in OVERWRITES:
            revive(call.inputs[0])
        real = None
        if all(map(has_value, call.inputs)) and all(map(may_have_value, outputs)):
            real = self.compute(call)
        if real is None:
            if is_mutating:
                drop_written(call)
            # A host leaf's gradient has to be on the CPU: the engine compares devices
            # (`validate_outputs`, torch/csrc/autograd/engine.cpp).
            if home is self.host and inside_backward():
                return self.as_real_gradient(result)
            return result
        # `compute` ran in place on a tensor that shares the kept value's memory.
        if is_mutating:
            return result
        if home is self.host:
            return real
        give_values(outputs, tensors_in(real))
        return result

    def as_real_gradient(self, result: Any) -> Any:
        """Real zeros for a small gradient of a host tensor."""
        if not isinstance(result, Tensor) or result.nbytes > values.REAL_HOST_BYTES:
            return result
        self.observer.placeholder_given("aten._to_copy", "a gradient of zeros on the host")
        return torch.zeros(result.shape, dtype=result.dtype)

    def compute(self, call: Invocation) -> Any:
        """The call on real host tensors; None if a value is unknown or only CUDA has a kernel."""
        arguments = values.real_arguments(call.args, call.kwargs)
        if arguments is None:
            return None
        args, kwargs = arguments
        kwargs.pop("pin_memory", None)
        overload = call.operator.overload
        try:
            if call.operator.is_random:
                with self.random().as_default():
                    result = overload(*args, **kwargs)
            else:
                result = overload(*args, **kwargs)
        except (RuntimeError, NotImplementedError):
            return None
        return () if result is None else result


def has_value(tensor: Tensor) -> bool:
    virtual = virtual_of(tensor)
    return virtual.value is not None if virtual is not None else not private.is_meta(tensor)


def may_have_value(tensor: Tensor) -> bool:
    virtual = virtual_of(tensor)
    return virtual is not None and (
        virtual.value is not None or values.keeps_value(tensor.dtype, virtual.requested_bytes)
    )


def give_values(outputs: Sequence[Tensor], reals: Sequence[Tensor]) -> None:
    """Keep the values of results, unless host and device differ in shape."""
    if [tensor.shape for tensor in outputs] != [real.shape for real in reals]:
        return
    for tensor, real in zip(outputs, reals, strict=True):
        if may_have_value(tensor) and not has_value(tensor):
            values.give_value(tensor, real)


def drop_written(call: Invocation) -> None:
    """Forget values that were overwritten by unknown ones."""
    if any(virtual is not None and virtual.value is not None for virtual in call.virtuals):
        for name, tensor in call.named_inputs:
            if name in call.operator.written:
                values.drop_value(tensor)


def revive(tensor: Tensor) -> None:
    """Allow a small storage that is about to be overwritten whole to have a value again."""
    virtual = virtual_of(tensor)
    if (
        virtual is not None
        and virtual.value is None
        and values.keeps_value(tensor.dtype, virtual.requested_bytes)
        and tensor.numel() * tensor.element_size() == virtual.requested_bytes
    ):
        virtual.value = torch.UntypedStorage(virtual.requested_bytes)


def inside_backward() -> bool:
    return private.current_autograd_node() is not None

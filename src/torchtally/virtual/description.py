"""A call as the trace records it: its name, shapes, layouts and literals."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtally.trace import Call, Literal, Scalar, TensorSpec
from torchtally.virtual.invocation import META, Invocation, tensors_within
from torchtally.virtual.storage import is_pinned, virtual_of

KEPT_LITERALS = (int, bool, str, type(None), torch.dtype)


def strides(tensor: Tensor) -> tuple[int, ...]:
    """A sparse tensor has no strides: those of a contiguous one."""
    if tensor.layout is torch.strided:
        return tuple(tensor.stride())
    return torch.empty(tensor.shape, device=META).stride()


def literal(value: Any) -> Literal:
    """A literal as the record keeps it; floats become None, dtypes their name."""
    if isinstance(value, (list, tuple)):
        return tuple(scalar for item in value for scalar in scalars(literal(item)))
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    return value if isinstance(value, (int, str)) else None


def scalars(value: Literal) -> tuple[Scalar, ...]:
    return value if isinstance(value, tuple) else (value,)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def literals(invocation: Invocation) -> Iterator[tuple[str, Literal]]:
    """Arguments other than tensors, as far as they are recorded."""
    for name, value in invocation.named_arguments:
        if isinstance(value, KEPT_LITERALS) or (
            isinstance(value, (list, tuple)) and not tensors_within(value)
        ):
            yield name, literal(value)


def describe(invocation: Invocation, outputs: Sequence[Tensor]) -> Call:
    """The call itself, for a signature seen for the first time."""
    operator = invocation.operator
    places: dict[int, int] = {}
    inputs = tuple(
        spec(tensor, name, places, is_written=name in operator.written)
        for name, tensor in invocation.named_inputs
    )
    return Call(
        name=operator.name,
        overload=operator.overload_name,
        inputs=inputs,
        outputs=tuple(spec(tensor, "", places) for tensor in outputs),
        literals=(*literals(invocation), *invocation.settings),
        is_mutating=operator.is_mutating,
    )


def spec(
    tensor: Tensor, argument: str, places: dict[int, int], *, is_written: bool = False
) -> TensorSpec:
    """One tensor's facts; `places` numbers the storages of the call as they are met."""
    virtual = virtual_of(tensor)
    is_on_device = virtual is not None and virtual.number >= 0
    identity = id(tensor if virtual is None else virtual)
    return TensorSpec(
        argument=argument,
        shape=tuple(tensor.shape),
        stride=strides(tensor),
        dtype=dtype_name(tensor.dtype),
        device="cuda:0" if is_on_device else "cpu",
        storage=places.setdefault(identity, len(places)),
        is_written=is_written,
        is_pinned=not is_on_device and is_pinned(tensor),
    )

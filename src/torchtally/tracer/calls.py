"""Interning of calls: most operators of a training run are the same call over and over."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchtally.record import Call, Literal, TensorSpec
from torchtally.virtual.dispatch import named_tensors
from torchtally.virtual.operators import Operator

KEPT_LITERALS = (int, bool, str, type(None), torch.dtype)

HOST = -1
"""The number of a host tensor's storage: the accounted device holds none of it."""


class Calls:
    """All distinct calls of a run. `of` returns a call's place in `calls` and its storages."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._known: dict[Any, int] = {}

    def of(
        self,
        operator: Operator,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: list[Tensor],
        outputs: list[Tensor],
    ) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """(place in `calls`, storage numbers of the inputs, storage numbers of the outputs)."""
        local: dict[int, int] = {}
        key: list[Any] = [operator.overload]
        came_in = describe(inputs, local, key)
        key.append(None)
        went_out = describe(outputs, local, key)
        for arg in (*args, *kwargs.items()) if kwargs else args:
            kind = type(arg)
            if kind in KEPT_LITERALS:
                key.append(arg)
            elif kind is tuple or kind is list:
                key.append(literal(arg) if not holds_tensors(arg) else len(arg))
        known = self._known.get(signature := tuple(key))
        if known is None:
            known = self._known[signature] = len(self.calls)
            self.calls.append(build(operator, args, kwargs, key, len(inputs), len(outputs)))
        return known, came_in, went_out


def describe(tensors: Sequence[Tensor], local: dict[int, int], key: list[Any]) -> tuple[int, ...]:
    """Append every tensor's facts to a key; returns the numbers of their storages."""
    numbers = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        virtual = getattr(storage, "virtual", None)
        number = HOST if virtual is None else virtual.number
        identity = number if number >= 0 else -2 - storage._cdata
        place = local.setdefault(identity, len(local))
        key.append((tensor.shape, tensor.stride(), tensor.dtype, place, number >= 0))
        numbers.append(number)
    return tuple(numbers)


def holds_tensors(arg: Sequence[Any]) -> bool:
    return any(isinstance(item, Tensor) for item in arg)


def literal(value: Any) -> Literal:
    """A literal as the record keeps it; floats become None, dtypes their name."""
    if isinstance(value, (list, tuple)):
        return tuple(literal(item) for item in value)  # type: ignore[misc]
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    return value if isinstance(value, (int, str)) else None


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def build(
    operator: Operator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    key: list[Any],
    inputs: int,
    outputs: int,
) -> Call:
    """The call itself, for a key seen for the first time."""
    names = [name for name, _ in named_tensors(operator, args, kwargs)]
    given = (*zip(operator.arguments, args, strict=False), *kwargs.items())
    literals = tuple(
        (name, literal(value))
        for name, value in given
        if isinstance(value, KEPT_LITERALS)
        or (isinstance(value, (list, tuple)) and not holds_tensors(value))
    )
    return Call(
        name=operator.name,
        overload=operator.overload._overloadname,
        inputs=tuple(
            spec(fact, name, name in operator.written)
            for fact, name in zip(key[1 : 1 + inputs], names, strict=True)
        ),
        outputs=tuple(spec(fact, "", False) for fact in key[2 + inputs : 2 + inputs + outputs]),
        literals=literals,
        is_mutating=operator.is_mutating,
    )


def spec(fact: Any, argument: str, is_written: bool) -> TensorSpec:
    shape, stride, dtype, place, is_on_device = fact
    return TensorSpec(
        argument=argument,
        shape=tuple(shape),
        stride=tuple(stride),
        dtype=dtype_name(dtype),
        device="cuda:0" if is_on_device else "cpu",
        storage=place,
        is_written=is_written,
    )

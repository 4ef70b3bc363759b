"""Calls for tests: written by hand, or recorded from operators that run."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import torch
from msgspec.structs import replace
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.builders import GPU, spec
from torchtally.trace import Call, Literal, TensorSpec
from torchtally.work import Cost, Kind, cost_of

__all__ = ["Recording", "call", "cost", "given", "recorded", "spec"]


def given(argument: str, *shape: int, dtype: str = "float32", written: bool = False) -> TensorSpec:
    """A tensor argument on the device."""
    return replace(spec(*shape, argument=argument, dtype=dtype), is_written=written)


def call(
    name: str,
    inputs: Sequence[TensorSpec],
    *outputs: TensorSpec | Sequence[int],
    overload: str = "default",
    **literals: Literal,
) -> Call:
    """A call whose tensors all have storage of their own. An output may be its shape alone.

    An operator that writes to an argument returns that argument: give no output for it.
    """
    numbers = count()
    own = tuple(replace(tensor, storage=next(numbers)) for tensor in inputs)
    fresh = [out if isinstance(out, TensorSpec) else spec(*out) for out in outputs]
    results = tuple(replace(tensor, storage=next(numbers)) for tensor in fresh)
    written = tuple(tensor for tensor in own if tensor.is_written)
    returned = tuple(replace(tensor, argument="", is_written=False) for tensor in written[:1])
    return Call(
        name=name,
        overload=overload,
        inputs=own,
        outputs=results or returned,
        literals=tuple(literals.items()),
        is_mutating=bool(written),
    )


def cost(one: Call) -> Cost:
    return cost_of(one)[1]


def literal(value: Any) -> tuple[bool, Literal]:
    """Whether a record keeps the argument, and as what."""
    if isinstance(value, bool | int | str) or value is None:
        return True, value
    if isinstance(value, torch.dtype):
        return True, str(value).removeprefix("torch.")
    if isinstance(value, list | tuple):
        items = [literal(item) for item in value]
        return all(kept for kept, _ in items), tuple(item for _, item in items)  # type: ignore[misc]
    return False, None


class Recording(TorchDispatchMode):
    """Records every operator below autograd as a call, all tensors as if on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        self.calls.append(call_of(func, args, kwargs or {}, results))
        return results

    @property
    def costs(self) -> list[tuple[Kind, Cost]]:
        return [cost_of(one) for one in self.calls]

    @property
    def total(self) -> Cost:
        return sum((one for _, one in self.costs), start=Cost())

    @property
    def uncounted(self) -> set[str]:
        return {one.name for one in self.calls if cost_of(one)[0] is Kind.UNCOUNTED}

    def flops(self, select: Callable[[Kind], bool] = lambda kind: True) -> int:
        return sum(one.flops for kind, one in self.costs if select(kind))

    def named(self, name: str) -> list[Call]:
        return [one for one in self.calls if one.name == name]


def call_of(
    func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], results: Any
) -> Call:
    numbers: dict[int, int] = {}
    arguments = func._schema.arguments
    values = [
        (argument, args[place] if place < len(args) else kwargs[argument.name])
        for place, argument in enumerate(arguments)
        if place < len(args) or argument.name in kwargs
    ]
    inputs: list[TensorSpec] = []
    literals: list[tuple[str, Literal]] = []
    for argument, value in values:
        written = argument.alias_info is not None and argument.alias_info.is_write
        tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        inputs += [spec_of(tensor, argument.name, numbers, written) for tensor in tensors]
        is_kept, kept = literal(value)
        if is_kept and not tensors:
            literals.append((argument.name, kept))
    outputs = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
    return Call(
        name=f"{func.namespace}.{func._schema.name.split('::')[1]}",
        overload=func._overloadname,
        inputs=tuple(inputs),
        outputs=tuple(spec_of(tensor, "", numbers, False) for tensor in outputs),
        literals=tuple(literals),
        is_mutating=any(tensor.is_written for tensor in inputs),
    )


def spec_of(
    tensor: torch.Tensor, argument: str, numbers: dict[int, int], written: bool
) -> TensorSpec:
    storage = numbers.setdefault(tensor.untyped_storage()._cdata, len(numbers))
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorSpec(
        argument, tuple(tensor.shape), tuple(tensor.stride()), dtype, GPU, storage, written
    )


def recorded(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Recording:
    """What a function's operators are, run once."""
    with Recording() as recording:
        function(*args, **kwargs)
    return recording

"""A kernel's launch as an operator: it passes the same ways as one of torch's."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtally.trace import Literal
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.extensions.declared import declaration_of
from torchtally.virtual.facts import is_any_trained, mark_trained
from torchtally.virtual.invocation import Invocation
from torchtally.virtual.operators import Operator, kernel
from torchtally.virtual.storage import is_pinned, virtual_of

READ = "reads"
"""The literal that names the arguments that a kernel loads from."""

_operators: dict[tuple[Any, ...], Operator] = {}


def operator(name: str, arguments: tuple[str, ...], written: frozenset[str]) -> Operator:
    key = (name, arguments, written)
    if key not in _operators:
        _operators[key] = kernel(name, arguments, written)
    return _operators[key]


def launch(
    mode: VirtualDispatch,
    name: str,
    arguments: Mapping[str, Any],
    *,
    read: Collection[str],
    written: Collection[str],
    constants: Collection[str] = (),
) -> None:
    """A kernel called "namespace.name" runs on the tensors among its arguments.

    `constants` names arguments that it is compiled for; other numbers (a seed, a step) are no part
    of what is recorded.
    """
    tensors = {key: value for key, value in arguments.items() if has_tensors(value)}
    kept = {key: plain(arguments[key]) for key in constants if key in arguments}
    stored = frozenset(key for key in tensors if key in written)
    call = Invocation(
        operator(name, (*tensors, *kept), stored), (*tensors.values(), *kept.values()), {}
    )
    settings: tuple[tuple[str, Literal], ...] = (
        (READ, tuple(key for key in tensors if key in read)),
    )
    cost = declaration_of(name.partition(".")[2])
    call.settings = settings if cost is None else (*settings, *cost.literals(arguments))
    mode.check_place()
    check_pointers(tensors, mode)
    mode.notify(call, (), call.home)
    results = [tensor for key in stored for tensor in within(tensors[key])]
    for virtual in filter(None, map(virtual_of, results)):
        virtual.forget()
    if is_any_trained(call.inputs, call.virtuals):
        mark_trained(results)


def check_pointers(arguments: Mapping[str, Any], mode: VirtualDispatch) -> None:
    """Raise Triton's own error for a tensor that the device cannot reach."""
    for name, value in arguments.items():
        for tensor in within(value):
            virtual = virtual_of(tensor)
            is_reached = is_pinned(tensor) if virtual is None else virtual.home is not mode.host
            if tensor.numel() and not is_reached:
                raise ValueError(
                    f"Pointer argument (at {name}) cannot be accessed from Triton (cpu tensor?)"
                )


def has_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or bool(within(value))


def within(value: Any) -> Sequence[Tensor]:
    if isinstance(value, Tensor):
        return (value,)
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in within(item)]
    return ()


def plain(value: Any) -> Any:
    """A constant as part of a signature."""
    if isinstance(value, (int, float, str, type(None), torch.dtype)):
        return value
    return str(getattr(value, "value", value))

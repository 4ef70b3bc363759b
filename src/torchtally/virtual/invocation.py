"""One call of an operator as it reaches the virtual GPU, and its signature."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.trace import Literal
from torchtally.virtual.operators import Operator
from torchtally.virtual.storage import Home, VirtualStorage, is_pinned, virtual_of

META = torch.device("meta")
HOST_NUMBER = -1
"""The number of a storage that is on no virtual GPU."""
Settings = tuple[tuple[str, Literal], ...]
"""Literals of a call that are none of its arguments."""
SIGNATURE_LIMIT = 200_000
"""Signatures kept for the next session. A number forgotten is never given again."""
_signatures: dict[tuple[Any, ...], int] = {}
_new_signatures = count()
PINNED = "pinned"
"""Where a tensor is, in a signature; else True on the device, and False on the host."""


class Invocation:
    """An operator with its arguments; `inputs` are its tensors in order, lists flattened."""

    __slots__ = (
        "_signature", "args", "inputs", "kwargs", "numbers", "operator", "settings", "stream",
        "virtuals",
    )  # fmt: skip

    def __init__(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.operator = operator
        self.args = args
        self.kwargs = kwargs
        inputs: list[Tensor] = []
        for arg in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(arg, Tensor):
                inputs.append(arg)
            elif isinstance(arg, (list, tuple)):
                inputs += tensors_within(arg)
        self.inputs = inputs
        self.virtuals: list[VirtualStorage | None] = [virtual_of(tensor) for tensor in inputs]
        self.numbers: tuple[int, ...] = ()
        """Storage numbers of the inputs, known once the signature is."""
        self.settings: Settings = ()
        """What its cost depends on besides its arguments; set before the signature is read."""
        self.stream: int | None = None
        """The stream that it runs on; None: the current one."""
        self._signature: int | None = None

    @property
    def is_virtual(self) -> bool:
        return any(virtual is not None for virtual in self.virtuals)

    @property
    def home(self) -> Home | None:
        """The memory of the first virtual tensor among the inputs."""
        return next((virtual.home for virtual in self.virtuals if virtual is not None), None)

    @property
    def has_real(self) -> bool:
        """A real host tensor is among the inputs."""
        return any(
            virtual is None and not private.is_meta(tensor)
            for tensor, virtual in zip(self.inputs, self.virtuals, strict=True)
        )

    @property
    def named_inputs(self) -> list[tuple[str, Tensor]]:
        """Every tensor with the name of its argument."""
        named_inputs = []
        for name, arg in self.named_arguments:
            if isinstance(arg, Tensor):
                named_inputs.append((name, arg))
            elif isinstance(arg, (list, tuple)):
                named_inputs += [(name, item) for item in tensors_within(arg)]
        return named_inputs

    def argument(self, name: str) -> Any:
        """The value of an argument; None where it was left at its default.

        torch strips defaults from the end before it calls a mode (`parseIValuesToPyArgsKwargs`).
        """
        if name in self.kwargs:
            return self.kwargs[name]
        place = self.operator.arguments.index(name)
        return self.args[place] if place < len(self.args) else None

    @property
    def named_arguments(self) -> list[tuple[str, Any]]:
        return [*zip(self.operator.arguments, self.args, strict=False), *self.kwargs.items()]

    @property
    def signature(self) -> int:
        """A number that calls share which agree in operator, shapes, layouts, places and literals.

        What is known of a call is looked up by it several times: long tuples are hashed once.
        """
        number = self._signature
        if number is None:
            description = self._describe()
            number = _signatures.get(description)
            if number is None:
                number = _signatures[description] = next(_new_signatures)
            self._signature = number
        return number

    def number_inputs(self) -> None:
        """Have `numbers` known."""
        _ = self.signature

    def _describe(self) -> tuple[Any, ...]:
        key: list[Any] = [self.operator, self.settings, torch.get_default_dtype()]
        numbers: list[int] = []
        places: dict[int, int] = {}
        for tensor, virtual in zip(self.inputs, self.virtuals, strict=True):
            # Which inputs share a storage is part of the call: an operator may write through one.
            number = HOST_NUMBER if virtual is None else virtual.number
            identity = id(tensor if virtual is None else virtual)
            place = places.setdefault(identity, len(places))
            stride = tensor.stride() if tensor.layout is torch.strided else ()
            where: Any = number >= 0
            if (virtual is None or virtual.block is None) and is_pinned(tensor):
                where = PINNED  # a block means device memory, which is never pinned
            key.append((tensor.shape, stride, tensor.dtype, place, where))
            numbers.append(number)
        self.numbers = tuple(numbers)
        is_mutating = self.operator.is_mutating
        for arg in self.args:
            if not isinstance(arg, Tensor):
                key.append(hashable(arg, is_mutating))
        for name, arg in self.kwargs.items():
            if not isinstance(arg, (Tensor, torch.Generator)):
                key.append((name, hashable(arg, is_mutating)))
        return tuple(key)


def limit_signatures() -> None:
    """Forgets signatures at the end of a session where they have become many."""
    if len(_signatures) > SIGNATURE_LIMIT:
        _signatures.clear()


def tensors_within(arg: Sequence[Any]) -> list[Tensor]:
    """The tensors of a list argument, whose items may be lists: `Tensor[][]`."""
    tensors: list[Tensor] = []
    if not arg or isinstance(arg[0], (int, float)):
        return tensors  # a shape, as most lists are
    for item in arg:
        if isinstance(item, Tensor):
            tensors.append(item)
        elif isinstance(item, (list, tuple)):
            tensors += tensors_within(item)
    return tensors


def hashable(arg: Any, drops_floats: bool) -> Any:
    """An argument as part of a signature; of tensors in lists only that they are there.

    Floats of operators that write in place are dropped: results do not depend on them, and a
    changing learning rate would make every step a new signature.
    """
    kind = type(arg)
    if kind is list or kind is tuple:
        if arg and isinstance(arg[0], (Tensor, type(None))):
            return len(arg)
        return tuple(
            Tensor if isinstance(item, Tensor) else hashable(item, drops_floats) for item in arg
        )
    if (kind is float and drops_floats) or kind is torch.ScriptObject:
        return None  # an object: a process group, a kind of reduction
    # To Python 1, 1.0 and True are equal; the result's dtype depends on which it is.
    return (kind, arg) if kind is float or kind is bool else arg


def replace_tensors(arg: Any, replacement: dict[int, Tensor]) -> Any:
    """An argument with some of its tensors replaced, by identity."""
    if isinstance(arg, Tensor):
        return replacement.get(id(arg), arg)
    if isinstance(arg, (list, tuple)):
        return type(arg)(replace_tensors(item, replacement) for item in arg)
    return arg


def tensors_in(result: Any) -> Sequence[Tensor]:
    """The tensors of an operator's result; one of its items may be a list, as cuDNN's gradients."""
    if isinstance(result, Tensor):
        return (result,)
    return tensors_within(result) if isinstance(result, (tuple, list)) else ()

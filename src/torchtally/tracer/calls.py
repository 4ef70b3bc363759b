"""Interning of calls: most operators of a training run are the same call over and over."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchtally.trace import Call
from torchtally.virtual.description import describe, strides
from torchtally.virtual.invocation import HOST_NUMBER, PINNED, Invocation
from torchtally.virtual.storage import is_pinned, virtual_of


class Calls:
    """All distinct calls of a run. `of` returns a call's place in `calls` and its storages."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._numbers: dict[tuple[Any, ...], int] = {}

    def of(
        self, invocation: Invocation, outputs: Sequence[Tensor]
    ) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """(place in `calls`, storage numbers of the inputs, storage numbers of the outputs)."""
        key: list[Any] = [invocation.signature]
        numbers = []
        for tensor in outputs:
            virtual = virtual_of(tensor)
            number = HOST_NUMBER if virtual is None else virtual.number
            numbers.append(number)
            shares = invocation.virtuals.index(virtual) if virtual in invocation.virtuals else -1
            where: Any = number >= 0
            if number < 0 and is_pinned(tensor):
                where = PINNED
            key.append((tensor.shape, strides(tensor), tensor.dtype, shares, where))
        place = self._numbers.get(signature := tuple(key))
        if place is None:
            place = self._numbers[signature] = len(self.calls)
            self.calls.append(describe(invocation, outputs))
        return place, invocation.numbers, tuple(numbers)

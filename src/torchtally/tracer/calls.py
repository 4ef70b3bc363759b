"""Interning of calls: most operators of a training run are the same call over and over."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from torch import Tensor

from torchtally.trace import Call, Literal
from torchtally.virtual.description import describe, strides
from torchtally.virtual.invocation import HOST_NUMBER, PINNED, Invocation
from torchtally.virtual.storage import is_pinned, virtual_of

IN_GRAPH: tuple[tuple[str, Literal], ...] = (("in_graph", True),)
"""Of a call that a CUDA graph issues, together with all others of the graph."""


class Calls:
    """All distinct calls of a run. `of` returns a call's place in `calls` and its storages."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._adding = threading.RLock()
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._by_signature: dict[int, int] = {}
        """Of calls whose results depend on nothing else (`templates.py`)."""
        self._in_graphs: dict[int, int] = {}
        """Places of calls issued by a graph, by the place of the same call by itself."""

    def of(
        self, invocation: Invocation, outputs: Sequence[Tensor]
    ) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """(place in `calls`, storage numbers of the inputs, storage numbers of the outputs)."""
        signature = invocation.signature
        place = self._by_signature.get(signature)
        if place is None:
            place = self._place_of(invocation, outputs)
            if signature in invocation.operator.templates:
                self._by_signature[signature] = place
        return place, invocation.numbers, tuple(map(number_of, outputs))

    def _place_of(self, invocation: Invocation, outputs: Sequence[Tensor]) -> int:
        key: list[Any] = [invocation.signature]
        for tensor in outputs:
            virtual = virtual_of(tensor)
            number = HOST_NUMBER if virtual is None else virtual.number
            shares = invocation.virtuals.index(virtual) if virtual in invocation.virtuals else -1
            where: Any = number >= 0
            if number < 0 and is_pinned(tensor):
                where = PINNED
            key.append((tensor.shape, strides(tensor), tensor.dtype, shares, where))
        place = self._numbers.get(signature := tuple(key))
        if place is None:
            # A signature has floats, too, which a call has not: AdamW's bias correction is another
            # one in each step.
            place = self._numbers[signature] = self.of_call(describe(invocation, outputs))
        return place

    def of_kernel(self, key: tuple[Any, ...], call: Callable[[], Call]) -> int:
        """The place of a kernel's call, made when the key is new."""
        place = self._numbers.get(key)
        return self._add(self._numbers, key, call()) if place is None else place

    def _add(self, numbers: dict[Any, int], key: Any, call: Call) -> int:
        """The place of a new call. Another thread may have added it, or others, meanwhile."""
        with self._adding:
            place = numbers.get(key)
            if place is None:
                place = len(self.calls)
                self.calls.append(call)
                numbers[key] = place
        return place

    def of_call(self, call: Call) -> int:
        return self.of_kernel((call,), lambda: call)

    def in_graph(self, place: int) -> int:
        """The place of a call as a CUDA graph issues it."""
        number = self._in_graphs.get(place)
        if number is not None:
            return number
        call = self.calls[place]
        in_graph = msgspec.structs.replace(call, literals=(*call.literals, *IN_GRAPH))
        return self._add(self._in_graphs, place, in_graph)


def number_of(tensor: Tensor) -> int:
    """The number of a tensor's storage."""
    virtual = virtual_of(tensor)
    return HOST_NUMBER if virtual is None else virtual.number

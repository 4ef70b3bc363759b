"""What a CUDA graph captures: records of operators that did not run, and what they write to."""

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from torchtally.virtual.invocation import Invocation
from torchtally.virtual.storage import VirtualStorage, virtual_of

FORBIDDEN = "CUDA error: operation not permitted when stream is capturing"
"""cudaErrorStreamCaptureUnsupported, as torch raises it."""


class Capture:
    """One capture: `operators` are the observer's records, in order."""

    def __init__(self) -> None:
        self.operators: list[Any] = []
        self.written: weakref.WeakSet[VirtualStorage] = weakref.WeakSet()
        """As far as they still exist: their values are those of the last replay."""
        self.numbers: dict[int, int] = {}
        """Of the storages written to, by their addresses."""

    def add(self, record: Any, call: Invocation, outputs: Sequence[Tensor]) -> None:
        self.operators.append(record)
        results = [virtual_of(tensor) for tensor in outputs]
        fresh = [virtual for virtual in results if virtual not in call.virtuals]
        overwritten = [
            virtual_of(tensor)
            for name, tensor in call.named_inputs
            if name in call.operator.written
        ]
        self._add_written(filter(None, (*fresh, *overwritten)))

    def add_kernel(self, record: Any, written: Sequence[Tensor]) -> None:
        """A kernel that a compiler wrote."""
        self.operators.append(record)
        self._add_written(filter(None, map(virtual_of, written)))

    def _add_written(self, storages: Iterable[VirtualStorage]) -> None:
        for storage in storages:
            self.written.add(storage)
            self.numbers[storage.address] = storage.number

    def repeat(self, other: "Capture") -> None:
        """Another graph is replayed within this capture."""
        self.operators += other.operators
        self.written.update(other.written)
        self.numbers |= other.numbers

    def forget_values(self) -> None:
        for virtual in self.written:
            virtual.value = None

"""What a run would allocate at other values and on other chips, extrapolated from two runs.

Every storage is assumed to grow along a straight line, and so are the shapes of calls that take
scratch memory: how much they take then follows by the rules of `workspace`, for each chip. The
allocator is asked what it makes of that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from torchtally.chips import Chip
from torchtally.memory.allocator import AllocatorSettings, Block, CachingAllocator, OutOfMemoryError
from torchtally.memory.workspace import blas_workspace, scratch
from torchtally.runs.allocations import Allocations
from torchtally.trace import Call, TensorSpec


@dataclass(frozen=True, slots=True)
class Peaks:
    """Peaks of a run by the model of the allocator."""

    fits: bool
    peak_allocated_bytes: int
    peak_reserved_bytes: int


class NotLinearError(Exception):
    """Something does not grow along a straight line, or not by whole numbers."""


@dataclass(slots=True)
class Growth:
    """Two runs that allocated the same things, at different values."""

    first_value: int
    first: Allocations
    second_value: int
    second: Allocations
    environment: Mapping[str, str]
    is_exact: bool = True
    """Else what does not grow along a straight line is rounded: good for guesses."""
    _replayed: dict[tuple[int, int | None, str], Peaks] = field(default_factory=dict)

    @property
    def is_alike(self) -> bool:
        first, second = self.first, self.second
        if first.events != second.events or first.blas != second.blas:
            return False
        if first.uses_streams or second.uses_streams or len(first.calls) != len(second.calls):
            return False
        try:
            self.at(self.first_value)
        except NotLinearError:
            return False
        return True

    def at(self, value: int) -> Allocations:
        """What a run at that value would allocate. Raises NotLinearError."""
        return replace(
            self.first,
            sizes=[
                self.number(a, b, value)
                for a, b in zip(self.first.sizes, self.second.sizes, strict=True)
            ],
            calls=tuple(
                self.call(a, b, value)
                for a, b in zip(self.first.calls, self.second.calls, strict=True)
            ),
        )

    def peaks_at(self, value: int, capacity_bytes: int | None, chip: Chip) -> Peaks:
        """What the allocator would make of that run. Raises NotLinearError."""
        key = (value, capacity_bytes, chip.name)
        if key not in self._replayed:
            self._replayed[key] = replay_allocations(
                self.at(value), capacity_bytes, chip, self.environment
            )
        return self._replayed[key]

    def number(self, first: int, second: int, value: int) -> int:
        """Number on the line through two. Raises NotLinearError where that is no size."""
        if first == second:
            return first
        span, way = self.second_value - self.first_value, value - self.first_value
        grown, rest = divmod((second - first) * way, span)
        if self.is_exact and (rest or first + grown < 0):
            raise NotLinearError
        return max(first + grown, 0)

    def call(self, first: Call, second: Call, value: int) -> Call:
        if first.name != second.name:
            raise NotLinearError
        return structs.replace(
            first,
            inputs=self.specs(first.inputs, second.inputs, value),
            outputs=self.specs(first.outputs, second.outputs, value),
            literals=self.any(first.literals, second.literals, value),
        )

    def specs(
        self, first: Sequence[TensorSpec], second: Sequence[TensorSpec], value: int
    ) -> tuple[TensorSpec, ...]:
        if [(spec.argument, spec.dtype) for spec in first] != [
            (spec.argument, spec.dtype) for spec in second
        ]:
            raise NotLinearError
        return tuple(
            structs.replace(
                a,
                shape=self.any(a.shape, b.shape, value),
                stride=self.any(a.stride, b.stride, value),
            )
            for a, b in zip(first, second, strict=True)
        )

    def any(self, first: Any, second: Any, value: int) -> Any:
        """Numbers, and tuples of them; everything else has to be the same in both."""
        if first == second:
            return first
        if isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second):
            return tuple(self.any(a, b, value) for a, b in zip(first, second, strict=True))
        if type(first) is int and type(second) is int:
            return self.number(first, second, value)
        raise NotLinearError


def replay_allocations(
    allocations: Allocations, capacity_bytes: int | None, chip: Chip, environment: Mapping[str, str]
) -> Peaks:
    """Peaks of a run on a chip with a given capacity; None: unlimited."""
    settings = AllocatorSettings.of_environment(environment)
    allocator = CachingAllocator(
        settings, capacity_bytes=capacity_bytes, total_bytes=chip.total_memory_bytes
    )
    sizes, storages = list(allocations.sizes), len(allocations.sizes)
    if allocations.blas:
        blas_bytes = blas_workspace(chip, environment).bytes
        for place in allocations.blas:
            sizes[place] = blas_bytes
    scratch_sizes = [
        [workspace.bytes for workspace in scratch(call, chip)] for call in allocations.calls
    ]
    blocks = dict[int, Block]()
    fits = True
    try:
        for event in allocations.events:
            if event > storages:
                blocks_of_call = [
                    allocator.allocate(size, 0) for size in scratch_sizes[event - storages - 1]
                ]
                for block in blocks_of_call:
                    allocator.free(block)
            elif event > 0:
                if sizes[event - 1]:
                    blocks[event] = allocator.allocate(sizes[event - 1], 0)
            elif event == 0:
                allocator.empty_cache()
            elif -event in blocks:
                allocator.free(blocks.pop(-event))
    except OutOfMemoryError:
        fits = False
    statistics = allocator.statistics.all
    return Peaks(fits, statistics.bytes_peak, statistics.reserved_bytes.peak)

"""What a run would allocate at a value nobody tried, from runs at two others.

Good for guesses: every storage is taken to grow along a straight line, and the allocator is asked
what it makes of that. What it says is tried before anybody is told.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torchtally.allocator import AllocatorSettings, Block, CachingAllocator, OutOfMemoryError


@dataclass(frozen=True, slots=True)
class Allocations:
    """All that a run allocated, and when."""

    events: Sequence[int]
    """The n-th storage was born: n + 1; it died: -(n + 1); the cache was emptied: 0."""
    sizes: Sequence[int]
    """Requested bytes."""


@dataclass(slots=True)
class Growth:
    """Two runs that allocated the same things, at different values."""

    first_value: int
    first: Allocations
    second_value: int
    second: Allocations
    environment: Mapping[str, str]
    _fits: dict[tuple[int, int], bool] = field(default_factory=dict)

    @property
    def is_alike(self) -> bool:
        return self.first.events == self.second.events

    def sizes(self, value: int) -> list[int]:
        """Requested bytes at that value."""
        span, way = self.second_value - self.first_value, value - self.first_value
        return [
            max(a + (b - a) * way // span, 0)
            for a, b in zip(self.first.sizes, self.second.sizes, strict=True)
        ]

    def fits(self, value: int, capacity_bytes: int) -> bool:
        """Whether the allocator could serve that run."""
        key = (value, capacity_bytes)
        if key not in self._fits:
            self._fits[key] = self._replay(value, capacity_bytes)
        return self._fits[key]

    def _replay(self, value: int, capacity_bytes: int) -> bool:
        settings = AllocatorSettings.of_environment(self.environment)
        allocator = CachingAllocator(settings, capacity_bytes=capacity_bytes)
        sizes, blocks = self.sizes(value), dict[int, Block]()
        try:
            for event in self.first.events:
                if event > 0:
                    if sizes[event - 1]:
                        blocks[event] = allocator.allocate(sizes[event - 1], 0)
                elif event == 0:
                    allocator.empty_cache()
                elif -event in blocks:
                    allocator.free(blocks.pop(-event))
        except OutOfMemoryError:
            return False
        return True

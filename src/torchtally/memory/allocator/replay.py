"""A trace run through the allocator again: under other settings, or on a chip of another size."""

from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

from torchtally.memory.allocator.block import Block
from torchtally.memory.allocator.caching import CachingAllocator
from torchtally.memory.allocator.out_of_memory import OutOfMemoryError
from torchtally.memory.allocator.settings import AllocatorSettings
from torchtally.trace import Refusal, Storage, Trace


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the allocator did in a trace. After a refusal (OOM) nothing more is counted."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    alloc_retries: int
    """How often cached segments had to be given back to serve a request."""
    refused: OutOfMemoryError | None
    """The first request that could not be served, at which the replay ended."""
    refused_tick: int | None

    @property
    def fits(self) -> bool:
        return self.refused is None


def replay(
    trace: Trace,
    *,
    device: str = "cuda:0",
    settings: AllocatorSettings | None = None,
    capacity_bytes: int | None = None,
    total_bytes: int | None = None,
) -> Replayed:
    """Every allocation and free of a device, in the trace's order.

    Args:
        trace: of a run; of one that ran out of memory, what came before that.
        device: whose storages are allocated.
        settings: None for those of the run.
        capacity_bytes: what the allocator can have of the device; None for no end of it.
        total_bytes: the device's memory as a program is told it; None: `capacity_bytes`.

    Known limits: blocks that other streams use (`record_stream`) are free at once; a private pool
    is kept to the end, though its graphs may be gone before.
    """
    if settings is None:
        settings = AllocatorSettings.parse(trace.allocator_settings)
    allocator = CachingAllocator(settings, capacity_bytes=capacity_bytes, total_bytes=total_bytes)
    player = Player(trace, device, allocator)
    refused: OutOfMemoryError | None = None
    try:
        player.play_to(NEVER)
    except OutOfMemoryError as error:
        refused = error
    statistics = allocator.statistics
    return Replayed(
        peak_allocated_bytes=statistics.all.bytes_peak,
        peak_reserved_bytes=statistics.all.reserved_bytes.peak,
        alloc_retries=statistics.alloc_retries,
        refused=refused,
        refused_tick=player.tick if refused is not None else None,
    )


class Player:
    """Plays the allocations and frees of a device, as far as is asked.

    What the allocator tells its listener (`CachingAllocator.happened`) is of `tick` and `storage`.
    """

    def __init__(
        self, trace: Trace, device: str, allocator: CachingAllocator, *, has_refusals: bool = False
    ) -> None:
        """`has_refusals`: what was refused in the run (OOM) is asked for again, in vain."""
        self.allocator = allocator
        self.tick = 0
        self.storage: Storage | None = None
        """What is being allocated or freed; None for another event."""
        self._events: list[Event] = (
            with_refusals(trace, device) if has_refusals else [*events(trace, device)]
        )
        self._place = 0
        self._blocks: dict[int, Block] = {}

    def play_to(self, end: int) -> None:
        """All events before this tick that were not played yet. Raises OutOfMemoryError."""
        while self._place < len(self._events) and self._events[self._place][0] < end:
            self.tick, order, happening = self._events[self._place]
            self._place += 1
            self.storage = happening if isinstance(happening, Storage) else None
            self._play(order, happening)

    @property
    def ticks(self) -> list[int]:
        """Those at which something happens, in order, each once."""
        return list(dict.fromkeys(tick for tick, _, _ in self._events))

    def _play(self, order: int, happening: "Happened") -> None:
        if isinstance(happening, Refusal):
            self._refuse(happening)
        elif happening is None:
            self.allocator.empty_cache()
        elif happening.requested_bytes and order == DIED:
            self.allocator.free(self._blocks.pop(happening.number))
        elif happening.requested_bytes:
            self._blocks[happening.number] = self._allocate(happening)

    def _refuse(self, refusal: Refusal) -> None:
        """The allocator gives back what it can before it refuses, as it did in the run."""
        with suppress(OutOfMemoryError):
            self.allocator.free(self.allocator.allocate(refusal.requested_bytes))

    def _allocate(self, storage: Storage) -> Block:
        pools, pool_id = self.allocator.private_pools, (storage.pool, 0)
        if storage.pool:
            pools.begin(pool_id, lambda stream: True)
        block = self.allocator.allocate(storage.requested_bytes, storage.stream)
        pools.end(pool_id)
        return block


NEVER = 1 << 62
"""Past every tick."""


DIED, EMPTIED, REFUSED, BORN = range(4)
"""The order within a tick: what the op before left goes, then the op allocates."""

Happened = Storage | Refusal | None
"""What a storage's birth or death, or a refusal is of; None: the cache was emptied."""
Event = tuple[int, int, Happened]
"""(tick, what, of what)."""


def with_refusals(trace: Trace, device: str) -> list[Event]:
    """The same events, and what was refused on this device, in order."""
    refused: list[Event] = [
        (refusal.tick, REFUSED, refusal) for refusal in trace.refusals if refusal.device == device
    ]
    return sorted([*events(trace, device), *refused], key=lambda row: row[:2])


def events(trace: Trace, device: str) -> list[tuple[int, int, Storage | None]]:
    """Events of a device, in the order in which they happened."""
    mine = [storage for storage in trace.storages if storage.device == device]
    facts = chain(
        (
            (storage.born, BORN, storage.number, storage)
            for storage in mine
            if storage.died is None or storage.died > storage.born
        ),
        (
            (storage.died, DIED, storage.number, storage)
            for storage in mine
            if storage.died is not None and storage.died > storage.born
        ),
        (
            (emptied.tick, EMPTIED, -1, None)
            for emptied in trace.emptied
            if emptied.device == device
        ),
    )
    return [
        (tick, order, storage) for tick, order, _, storage in sorted(facts, key=lambda row: row[:3])
    ]

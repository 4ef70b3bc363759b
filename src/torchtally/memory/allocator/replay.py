"""A trace run through the allocator again: under other settings, or on a chip of another size."""

from dataclasses import dataclass
from itertools import chain

from torchtally.memory.allocator.block import Block
from torchtally.memory.allocator.caching import CachingAllocator
from torchtally.memory.allocator.out_of_memory import OutOfMemoryError
from torchtally.memory.allocator.settings import AllocatorSettings
from torchtally.trace import Storage, Trace


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
    blocks: dict[int, Block] = {}
    refused: OutOfMemoryError | None = None
    tick = 0
    try:
        for tick, order, storage in events(trace, device):  # noqa: B007 (of the refusal)
            if order == EMPTIED:
                allocator.empty_cache()
            elif storage is None or not storage.requested_bytes:
                continue
            elif order == DIED:
                allocator.free(blocks.pop(storage.number))
            else:
                pool_id = (storage.pool, 0)
                if storage.pool:
                    allocator.private_pools.begin(pool_id, lambda stream: True)
                blocks[storage.number] = allocator.allocate(storage.requested_bytes, storage.stream)
                allocator.private_pools.end(pool_id)
    except OutOfMemoryError as error:
        refused = error
    statistics = allocator.statistics
    return Replayed(
        peak_allocated_bytes=statistics.all.bytes_peak,
        peak_reserved_bytes=statistics.all.reserved_bytes.peak,
        alloc_retries=statistics.alloc_retries,
        refused=refused,
        refused_tick=tick if refused is not None else None,
    )


DIED, EMPTIED, BORN = range(3)
"""The order within a tick: what the op before left goes, then the op allocates."""


def events(trace: Trace, device: str) -> list[tuple[int, int, Storage | None]]:
    """(tick, what, storage) of a device, in the order in which they happened."""
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

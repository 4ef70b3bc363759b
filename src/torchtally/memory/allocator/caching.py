"""The caching allocator: a request for bytes finds a free block, or a new segment is made for it.

The rules are those of c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.11), function by function:

- A request is rounded up to 512 bytes. Up to 1 MiB it is served from segments of 2 MiB; larger ones
  from segments of 20 MiB (below 10 MiB) or of their own size rounded up to 2 MiB.
- The smallest free block of the same stream that holds it is taken, and split when enough is left.
- A freed block joins its free neighbours. Memory goes back to the device only when the cache is
  emptied, when nothing else satisfies a request, or by `garbage_collection_threshold`.
- What a CUDA graph captures has a private pool (`private_pools.py`).
"""

from bisect import bisect_left
from collections.abc import Callable

from torchtally.memory.allocator.block import (
    Block,
    ExpandableSegment,
    Pool,
    has_room,
    is_whole_segment,
    link,
    mapped_blocks,
    size_with_unmapped,
)
from torchtally.memory.allocator.out_of_memory import OutOfMemoryError
from torchtally.memory.allocator.private_pools import PrivatePools
from torchtally.memory.allocator.settings import (
    MIN_LARGE_BYTES,
    ROUND_LARGE_BYTES,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
    UNLIMITED,
    AllocatorSettings,
)
from torchtally.memory.allocator.statistics import PoolStatistics, Statistics
from torchtally.trace.storage import ROUND_BYTES, allocated_bytes

FIRST_ADDRESS = 0x7F00_0000_0000
"""Below 2**53, so that a JavaScript viewer keeps every address exact."""

Happening = Callable[[str, int, int, int, Block | None], None]
"""Told of (action, address, bytes, stream, block), actions named as in memory snapshots."""


class CachingAllocator:
    """The allocator of one device.

    Args:
        settings: torch's options.
        capacity_bytes: what the device can give to this process; None for no end of it.
        total_bytes: the device's memory as a program is told it, for the words of an error and
            for `per_process_memory_fraction`; None: `capacity_bytes`.
        device_index: for the words of an error.
    """

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        *,
        capacity_bytes: int | None = None,
        total_bytes: int | None = None,
        device_index: int = 0,
    ) -> None:
        self.settings = settings or AllocatorSettings()
        """May change at any time, as in torch."""
        self.capacity_bytes = capacity_bytes
        self.total_bytes = total_bytes or capacity_bytes or UNLIMITED
        self.device_index = device_index
        self.statistics = Statistics()
        self.fraction = self.settings.per_process_memory_fraction
        """Share of the device's memory this process may reserve; None: all of it."""
        self.reserved_bytes = 0
        """In segments, now: what the device has given."""
        self.happened: Happening | None = None
        self._small = Pool(is_small=True)
        self._large = Pool(is_small=False)
        self.private_pools = PrivatePools()
        self._allocated: dict[int, Block] = {}
        """By address."""
        self._pending: list[Block] = []
        self._expandable: list[ExpandableSegment] = []
        self._next_address = FIRST_ADDRESS

    # Requests.

    def allocate(self, requested_bytes: int, stream: int = 0) -> Block:
        """A block for a request of at least one byte. Raises OutOfMemoryError."""
        size = self.rounded_bytes(requested_bytes)
        owner = self.private_pools.taking(stream)
        small, large = (self._small, self._large) if owner is None else (owner.small, owner.large)
        pool = small if size <= SMALL_REQUEST_BYTES else large
        block = self._free_block(pool, size, stream) or self._new_block(pool, size, stream)
        splits = self._is_worth_splitting(block, size)
        return self.hand_out(block, size, requested_bytes, splits=splits)

    def hand_out(self, block: Block, size: int, requested_bytes: int, *, splits: bool) -> Block:
        """A block that was taken from its pool, or its front, is allocated from now on."""
        statistics = self.statistics
        part = statistics.small if block.pool.is_small else statistics.large
        if splits:
            block = self._split(block, size, part)
        elif block.segment is None and (block.previous is not None or block.next is not None):
            statistics.all.count_splits(-1, -block.size)
            part.count_splits(-1, -block.size)
        block.is_allocated = True
        block.requested_bytes = requested_bytes
        self._allocated[block.address] = block
        size = block.size
        statistics.all.count_allocation(size, requested_bytes)
        part.count_allocation(size, requested_bytes)
        if size >= self.settings.max_split_bytes:
            statistics.oversize_allocations.increase(1)
        if self.happened is not None:
            self.happened("alloc", block.address, requested_bytes, block.stream, block)
        return block

    def free(self, block: Block) -> None:
        """Give a block back. It can serve again at once, unless other streams still use it."""
        block.is_allocated = False
        del self._allocated[block.address]
        statistics = self.statistics
        part = statistics.small if block.pool.is_small else statistics.large
        statistics.all.count_free(block.size)
        part.count_free(block.size)
        if self.happened is not None:
            self.happened(
                "free_requested", block.address, block.requested_bytes, block.stream, block
            )
        if block.size >= self.settings.max_split_bytes:
            statistics.oversize_allocations.decrease(1)
        if block.streams_used:
            block.is_pending = True
            self._pending.append(block)
            statistics.all.count_waiting(block.size)
            part.count_waiting(block.size)
        else:
            self._make_available(block)

    def record_stream(self, block: Block, stream: int) -> None:
        """Another stream uses the block: once freed, it waits for `synchronize`."""
        if stream != block.stream:
            block.streams_used = (block.streams_used or set()) | {stream}

    def synchronize(self) -> None:
        """All streams have done their work: what waited for them is available."""
        pending, self._pending = self._pending, []
        for block in pending:
            block.is_pending = False
            block.streams_used = None
            for each in (self.statistics.all, self._part(block.pool)):
                each.pending -= 1
                each.pending_bytes -= block.size
            self._make_available(block)

    def empty_cache(self) -> None:
        """Give back to the device every segment that holds no allocation.

        Those of private pools only where no graph uses the pool any more; of the others none while
        a capture is underway (`release_cached_blocks`).
        """
        pools = self.private_pools.unused_pools()
        if not self.private_pools.are_filling:
            self.statistics.sync_all_streams += 1
            self.synchronize()
            pools = [self._large, self._small, *pools]
        for pool in pools:
            to_unmap = []
            for block in pool:
                if block.segment is not None:
                    to_unmap.append(block)
                elif not block.is_split:
                    self._release(block)
            for block in to_unmap:
                self._unmap(block)

    # What stands.

    @property
    def allocated_bytes(self) -> int:
        return self.statistics.all.bytes

    @property
    def free_bytes(self) -> int:
        """What the device could still give. `UNLIMITED` for a device without end."""
        if self.capacity_bytes is None:
            return UNLIMITED
        return max(0, self.capacity_bytes - self.reserved_bytes)

    @property
    def allowed_bytes(self) -> int | None:
        """What the memory fraction leaves to this process."""
        return None if self.fraction is None else int(self.fraction * self.total_bytes)

    @property
    def has_pending(self) -> bool:
        """Freed blocks wait for other streams."""
        return bool(self._pending)

    def block_at(self, address: int) -> Block | None:
        """The allocation that begins at an address."""
        return self._allocated.get(address)

    def segments(self) -> list[list[Block]]:
        """The blocks of every segment, by address; an expandable segment's mapped ranges."""
        private = [block for pool in self.private_pools for block in pool]
        blocks = [*self._small, *self._large, *private, *self._allocated.values(), *self._pending]
        heads = [
            block for block in blocks if block.previous is None or not block.previous.is_mapped
        ]
        return [list(mapped_blocks(head)) for head in sorted(heads, key=lambda head: head.address)]

    # Sizes.

    def rounded_bytes(self, requested_bytes: int) -> int:
        """What a request is rounded up to: 512 bytes, or a part of its power of two."""
        if requested_bytes < ROUND_BYTES:
            return ROUND_BYTES
        settings = self.settings
        divisions = settings.divisions_at(requested_bytes) if settings.rounds_up else 0
        if divisions > 1 and requested_bytes > ROUND_BYTES * divisions:
            return round_in_power_of_two(requested_bytes, divisions)
        return allocated_bytes(requested_bytes)

    def segment_bytes(self, size: int) -> int:
        """The size of the segment that is made for a block of `size`."""
        if size <= SMALL_REQUEST_BYTES:
            return SMALL_SEGMENT_BYTES
        if size < MIN_LARGE_BYTES:
            return self.settings.large_segment_bytes
        return -(-size // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES

    # A free block.

    def _free_block(self, pool: Pool, size: int, stream: int) -> Block | None:
        """The smallest one that holds `size`, taken from its pool."""
        if self._collects_garbage:
            pool.searches += 1
        blocks = pool.free.get(stream)
        if not blocks:
            return None
        place = bisect_left(blocks, (size,))
        if place == len(blocks):
            return None
        settings = self.settings
        if blocks[place][2].segment is not None:
            expandable_place = self._place_in_expandable(blocks, place)
            if expandable_place is None:
                return None
            place = expandable_place
        candidate = blocks[place][2]
        limit = settings.max_split_bytes
        if size < limit <= candidate.size:
            return None
        if size >= limit and candidate.size >= size + settings.max_non_split_rounding_bytes:
            return None
        del blocks[place]
        return candidate

    def _place_in_expandable(self, blocks: list[tuple[int, int, Block]], place: int) -> int | None:
        """A block at the end of a segment counts as large as it could grow."""
        if not self.settings.is_expandable:
            return next(
                (index for index in range(place, len(blocks)) if blocks[index][2].segment is None),
                None,
            )
        while place + 1 < len(blocks) and blocks[place][2].segment is not None:
            if size_with_unmapped(blocks[place + 1][2]) >= size_with_unmapped(blocks[place][2]):
                break
            place += 1
        return place

    def _is_worth_splitting(self, block: Block, size: int) -> bool:
        remaining = block.size - size
        if block.pool.is_small or self.settings.is_expandable:
            return remaining >= ROUND_BYTES
        return size < self.settings.max_split_bytes and remaining > SMALL_REQUEST_BYTES

    def _split(self, rest: Block, size: int, part: PoolStatistics) -> Block:
        """The front of a block as a block of its own; the rest becomes free."""
        was_split = rest.is_split
        block = Block(rest.address, size, rest.stream, rest.pool, rest.segment)
        block.previous = rest.previous
        if block.previous is not None:
            block.previous.next = block
        block.next = rest
        rest.previous = block
        rest.address += size
        rest.size -= size
        rest.pool.insert(rest)
        if rest.segment is None:
            blocks, split_bytes = (0, -size) if was_split else (1, rest.size)
            self.statistics.all.count_splits(blocks, split_bytes)
            part.count_splits(blocks, split_bytes)
        return block

    # A new segment.

    def _new_block(self, pool: Pool, size: int, stream: int) -> Block:
        """A block from the device, after giving back what is cached if need be. Raises
        OutOfMemoryError.
        """
        if self._collects_garbage:
            self._collect_garbage()
        segment_bytes = self.segment_bytes(size)
        block = self._reserve(pool, size, segment_bytes, stream)
        if block is None and self._release_enough_oversize(pool, size, stream):
            block = self._reserve(pool, size, segment_bytes, stream)
        if block is None and not self.private_pools.are_filling:
            self.empty_cache()
            self.statistics.alloc_retries += 1
            block = self._reserve(pool, size, segment_bytes, stream)
        if block is None:
            self.statistics.ooms += 1
            if self.happened is not None:
                self.happened("oom", self.free_bytes, size, stream, None)
            raise OutOfMemoryError(
                requested_bytes=segment_bytes,
                device_index=self.device_index,
                total_bytes=self.total_bytes,
                free_bytes=self.free_bytes,
                allowed_bytes=self.allowed_bytes,
                allocated_bytes=self.allocated_bytes,
                reserved_bytes=self.reserved_bytes,
            )
        return block

    def _reserve(self, pool: Pool, size: int, segment_bytes: int, stream: int) -> Block | None:
        """A block from new memory; None when there is not enough."""
        allowed_bytes = self.allowed_bytes
        if allowed_bytes is not None and self.reserved_bytes + segment_bytes > allowed_bytes:
            return None
        if self.settings.is_expandable:
            return self._grow(pool, size, stream)
        if segment_bytes > self.free_bytes:
            return None
        block = Block(self._next_address, segment_bytes, stream, pool)
        self._next_address += -(-segment_bytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES
        self.reserved_bytes += segment_bytes
        part = self._part(pool)
        for each in (self.statistics.all, part):
            each.segment.increase(1)
            each.reserved_bytes.increase(segment_bytes)
        if segment_bytes >= self.settings.max_split_bytes:
            self.statistics.oversize_segments.increase(1)
        self.statistics.device_allocs += 1
        if self.happened is not None:
            self.happened("segment_alloc", block.address, segment_bytes, stream, block)
        return block

    def _part(self, pool: Pool) -> PoolStatistics:
        return self.statistics.small if pool.is_small else self.statistics.large

    # Freeing.

    def _make_available(self, block: Block) -> None:
        """Join a freed block with its free neighbours, and put it into its pool."""
        pool = block.pool
        if self.happened is not None:
            self.happened(
                "free_completed", block.address, block.requested_bytes, block.stream, block
            )
        requested_bytes = block.requested_bytes
        joined_blocks = joined_bytes = 0
        for neighbour in (block.previous, block.next):
            if neighbour is not None and (subsumed := self._join(block, neighbour)):
                joined_blocks += 1
                joined_bytes += subsumed
        pool.insert(block)
        statistics = self.statistics
        part = statistics.small if pool.is_small else statistics.large
        is_split = block.previous is not None or block.next is not None
        blocks = is_split - joined_blocks
        split_bytes = (block.size if is_split else 0) - joined_bytes
        if block.segment is None:
            statistics.all.count_splits(blocks, split_bytes)
            part.count_splits(blocks, split_bytes)
        statistics.all.requested -= requested_bytes
        part.requested -= requested_bytes

    def _join(self, block: Block, neighbour: Block | None) -> int:
        """Make a free neighbour part of the block; its size, or 0 when they cannot be joined."""
        if (
            neighbour is None
            or neighbour.is_allocated
            or neighbour.is_pending
            or neighbour.is_mapped is not block.is_mapped
        ):
            return 0
        if neighbour.is_mapped:
            block.pool.remove(neighbour)
        else:
            block.pool.remove_unmapped(neighbour)
        if block.previous is neighbour:
            block.address = neighbour.address
            block.previous = neighbour.previous
            if block.previous is not None:
                block.previous.next = block
        else:
            block.next = neighbour.next
            if block.next is not None:
                block.next.previous = block
        block.size += neighbour.size
        return neighbour.size

    # Giving back.

    def _release(self, block: Block) -> None:
        """Give a whole free segment back to the device."""
        block.pool.remove(block)
        self.reserved_bytes -= block.size
        for each in (self.statistics.all, self._part(block.pool)):
            each.segment.decrease(1)
            each.reserved_bytes.decrease(block.size)
        if block.size >= self.settings.max_split_bytes:
            self.statistics.oversize_segments.decrease(1)
        self.statistics.device_frees += 1
        if self.happened is not None:
            self.happened("segment_free", block.address, block.size, block.stream, block)

    def _release_enough_oversize(self, pool: Pool, size: int, stream: int) -> bool:
        """Give back unsplittable cached blocks, but only as many as the request needs."""
        limit = self.settings.max_split_bytes
        if limit == UNLIMITED:
            return False
        blocks = pool.free.get(stream, [])
        least_bytes = max(size, limit)
        place = bisect_left(blocks, (least_bytes,))
        if place < len(blocks) and is_whole_segment(blocks[place][2]):
            self._release(blocks[place][2])
            return True
        released_bytes = 0
        for _, _, block in blocks[:place][::-1]:
            if released_bytes >= least_bytes or block.size < limit:
                break
            if is_whole_segment(block):
                released_bytes += block.size
                self._release(block)
        return released_bytes >= least_bytes

    @property
    def _collects_garbage(self) -> bool:
        return self.fraction is not None and self.settings.garbage_collection_threshold > 0

    def _collect_garbage(self) -> None:
        """Gives back, above the threshold, whole free segments that waited longer than most."""
        allowed_bytes = self.allowed_bytes or 0
        threshold_bytes = int(self.settings.garbage_collection_threshold * allowed_bytes)
        wanted_bytes = self.reserved_bytes - threshold_bytes
        pool = self._large
        whole = [block for block in pool if not block.is_split]
        age = sum(pool.age(block) for block in whole)
        released_bytes = 0
        while whole and released_bytes < wanted_bytes:
            old_age = age / len(whole)
            old = [block for block in whole if pool.age(block) >= old_age]
            whole = [block for block in whole if pool.age(block) < old_age]
            if not old:
                return
            for block in old:
                released_bytes += block.size
                age -= pool.age(block)
                self._release(block)

    # Expandable segments.

    def _grow(self, pool: Pool, size: int, stream: int) -> Block | None:
        """A block at the lowest address where a segment can be made to hold it."""
        candidate = self._room(pool, size, stream)
        if not candidate.is_mapped and not self._map(candidate, min(candidate.size, size)):
            return None
        while candidate.size < size:
            after = candidate.next
            if after is None:
                return None  # more than the addresses of a segment, hence than the device has
            if not self._map(after, min(size - candidate.size, after.size)):
                return None
            candidate = after
        pool.remove(candidate)
        return candidate

    def _room(self, pool: Pool, size: int, stream: int) -> Block:
        """The first free or unmapped block from which on there are addresses enough."""
        for _, unmapped in pool.unmapped.get(stream, []):
            before = unmapped.previous
            first = before if before is not None and before.is_available else unmapped
            if has_room(first, size):
                return first
        granularity_bytes = (
            SMALL_SEGMENT_BYTES if pool.is_small else self.settings.large_segment_bytes
        )
        # torch reserves addresses for 1 1/8 of the device's memory; more where there is no limit
        room_bytes = 1 << 42 if self.capacity_bytes is None else self.total_bytes
        room_bytes += room_bytes // 8
        segment = ExpandableSegment(self._next_address, room_bytes, granularity_bytes)
        self._next_address += segment.size
        self._expandable.append(segment)
        block = Block(segment.address, segment.size, stream, pool, segment, is_mapped=False)
        pool.insert_unmapped(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Put memory behind the front of an unmapped block; False when there is not enough."""
        segment = block.segment
        assert segment is not None, "only expandable segments have unmapped blocks"
        unit = segment.granularity_bytes
        mapped_bytes = -(-size // unit) * unit
        if mapped_bytes > self.free_bytes:
            return False
        pool = block.pool
        pool.remove_unmapped(block)
        block.is_mapped = True
        if mapped_bytes < block.size:
            rest = Block(
                block.address + mapped_bytes,
                block.size - mapped_bytes,
                block.stream,
                pool,
                segment,
                is_mapped=False,
            )
            link(block, rest, block.next)
            block.size = mapped_bytes
            pool.insert_unmapped(rest)
        address = block.address
        self._join(block, block.previous)
        self._join(block, block.next)
        pool.insert(block)
        self.reserved_bytes += mapped_bytes
        for each in (self.statistics.all, self._part(pool)):
            each.reserved_bytes.increase(mapped_bytes)
        self.statistics.device_allocs += 1
        if self.happened is not None:
            self.happened("segment_map", address, mapped_bytes, block.stream, block)
        return True

    def _unmap(self, block: Block) -> None:
        """Give back the whole units of memory behind a free block, and leave its ends."""
        segment, pool = block.segment, block.pool
        assert segment is not None, "only expandable segments are unmapped"
        unit = segment.granularity_bytes
        begin = segment.address + -(-(block.address - segment.address) // unit) * unit
        end = segment.address + (block.address + block.size - segment.address) // unit * unit
        if begin >= end:
            return
        pool.remove(block)
        if begin > block.address:
            front = Block(block.address, begin - block.address, block.stream, pool, segment)
            link(block.previous, front, block)
            pool.insert(front)
        if (after_bytes := block.address + block.size - end) > 0:
            back = Block(end, after_bytes, block.stream, pool, segment)
            link(block, back, block.next)
            pool.insert(back)
        block.address, block.size, block.is_mapped = begin, end - begin, False
        self._join(block, block.previous)
        self._join(block, block.next)
        self.reserved_bytes -= end - begin
        for each in (self.statistics.all, self._part(pool)):
            each.reserved_bytes.decrease(end - begin)
        self.statistics.device_frees += 1
        if self.happened is not None:
            self.happened("segment_unmap", begin, end - begin, block.stream, block)
        if block.is_split:
            pool.insert_unmapped(block)
        else:
            self._expandable.remove(segment)


def round_in_power_of_two(size: int, divisions: int) -> int:
    """A size rounded up to the next of `divisions` equal steps within its power of two.

    1200 with 4 divisions: 1024, 1280, 1536, 1792, hence 1280.
    """
    if size.bit_count() == 1:
        return size
    floor = 1 << (size.bit_length() - 1)
    step = floor >> (divisions.bit_length() - 1)
    if step == 0:
        return floor << 1
    return -(-size // step) * step

"""Pieces of device memory: blocks, and the pools in which free ones wait."""

from bisect import bisect_left, insort
from collections.abc import Iterator


class ExpandableSegment:
    """A range of addresses whose memory comes and goes in pieces of `granularity_bytes`."""

    __slots__ = ("address", "granularity_bytes", "size")

    def __init__(self, address: int, size: int, granularity_bytes: int) -> None:
        self.address = address
        self.granularity_bytes = granularity_bytes
        self.size = -(-size // granularity_bytes) * granularity_bytes


class Block:
    """A range of one segment, handed out or free; neighbours in the segment are linked."""

    __slots__ = (
        "address",
        "age_base",
        "frames",
        "is_allocated",
        "is_mapped",
        "is_pending",
        "next",
        "pool",
        "previous",
        "requested_bytes",
        "segment",
        "size",
        "stream",
        "streams_used",
    )

    def __init__(
        self,
        address: int,
        size: int,
        stream: int,
        pool: "Pool",
        segment: ExpandableSegment | None = None,
        *,
        is_mapped: bool = True,
    ) -> None:
        self.address = address
        self.size = size
        self.stream = stream
        self.pool = pool
        self.segment = segment
        """None in a segment that was allocated as a whole."""
        self.is_mapped = is_mapped
        """Whether there is memory behind the addresses; only expandable segments have others."""
        self.requested_bytes = 0
        self.is_allocated = False
        self.is_pending = False
        """Freed, but other streams may still use it."""
        self.streams_used: set[int] | None = None
        """Other streams that use it, by `record_stream`."""
        self.previous: Block | None = None
        self.next: Block | None = None
        self.age_base = 0
        self.frames: tuple[dict[str, object], ...] | None = None
        """Where it was allocated, while a memory history is recorded."""

    @property
    def is_split(self) -> bool:
        """Part of a segment that holds other blocks, too."""
        return self.previous is not None or self.next is not None

    @property
    def is_available(self) -> bool:
        return not self.is_allocated and not self.is_pending


class Pool:
    """Free blocks, sorted by size and then address for each stream; small and large ones apart."""

    def __init__(self, *, is_small: bool, owner: tuple[int, int] = (0, 0)) -> None:
        self.is_small = is_small
        self.owner = owner
        """The private pool that it is part of; (0, 0): none."""
        self.free: dict[int, list[tuple[int, int, Block]]] = {}
        """By stream: (size, address, block), sorted."""
        self.unmapped: dict[int, list[tuple[int, Block]]] = {}
        """By stream: (address, block), sorted: room in expandable segments."""
        self.searches = 0
        """How often a free block was looked for: the clock of garbage collection."""

    def insert(self, block: Block) -> None:
        block.age_base = self.searches
        insort(self.free.setdefault(block.stream, []), (block.size, block.address, block))

    def remove(self, block: Block) -> None:
        blocks = self.free[block.stream]
        del blocks[bisect_left(blocks, (block.size, block.address))]

    def insert_unmapped(self, block: Block) -> None:
        insort(self.unmapped.setdefault(block.stream, []), (block.address, block))

    def remove_unmapped(self, block: Block) -> None:
        blocks = self.unmapped[block.stream]
        del blocks[bisect_left(blocks, (block.address,))]

    def __iter__(self) -> Iterator[Block]:
        for blocks in list(self.free.values()):
            for _, _, block in list(blocks):
                yield block

    def age(self, block: Block) -> int:
        """Searches since the block became free."""
        return self.searches - block.age_base


def link(before: Block | None, block: Block, after: Block | None) -> None:
    """Put a block between two neighbours of its segment."""
    block.previous, block.next = before, after
    if before is not None:
        before.next = block
    if after is not None:
        after.previous = block


def is_whole_segment(block: Block) -> bool:
    """Whether the device would take it back as it is: no page, no rest of a larger segment.

    A rest of `max_split_size_mb` or more is left where `large_segment_size_mb` exceeds it; torch
    does not look, and the driver refuses.
    """
    return block.segment is None and not block.is_split


def size_with_unmapped(block: Block) -> int:
    """A block's size with the unmapped room behind it."""
    after = block.next
    return block.size + (after.size if after is not None and not after.is_mapped else 0)


def has_room(block: Block, size: int) -> bool:
    available_bytes = 0
    neighbour: Block | None = block
    while available_bytes < size and neighbour is not None and neighbour.is_available:
        available_bytes += neighbour.size
        neighbour = neighbour.next
    return available_bytes >= size


def mapped_blocks(head: Block) -> Iterator[Block]:
    """A segment's blocks from its first on, as far as there is memory behind them."""
    block: Block | None = head
    while block is not None and block.is_mapped:
        yield block
        block = block.next

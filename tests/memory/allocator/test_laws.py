"""What holds for every sequence of requests, whatever the settings: the books are never wrong.

The model keeps its sums as it goes along, by differences. Here they are counted again from the
blocks themselves, and the segments from what the device was told to give and to take back.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torchtally.memory.allocator import AllocatorSettings, Block, CachingAllocator, OutOfMemoryError
from torchtally.memory.allocator.settings import ROUND_LARGE_BYTES, SMALL_SEGMENT_BYTES, UNLIMITED

KIB, MIB = 1 << 10, 1 << 20

Event = tuple[Any, ...]


@dataclass
class Player:
    """Asks a model for memory, and writes down what the device gives and what is held."""

    allocator: CachingAllocator
    held: list[Block] = field(default_factory=list)
    given: dict[int, int] = field(default_factory=dict)
    """Bytes of the segments that were allocated as a whole, by address."""
    mapped: set[int] = field(default_factory=set)
    """MiB of expandable segments that have memory behind them, by their number."""
    refused: int = 0
    places: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.allocator.happened = self.happened

    def happened(
        self, action: str, address: int, size: int, stream: int, block: Block | None
    ) -> None:
        units = range(address // MIB, (address + size) // MIB)
        match action:
            case "segment_alloc":
                assert address not in self.given
                self.given[address] = size
            case "segment_free":
                assert self.given.pop(address) == size
            case "segment_map":
                assert self.mapped.isdisjoint(units)
                self.mapped.update(units)
            case "segment_unmap":
                assert self.mapped.issuperset(units)
                self.mapped.difference_update(units)

    def play(self, event: Event) -> None:
        allocator, held = self.allocator, self.held
        match event:
            case "alloc", size, stream:
                self.allocate(size, stream)
            case "free", index if held:
                allocator.free(held.pop(index % len(held)))
            case "record_stream", index, stream if held:
                allocator.record_stream(held[index % len(held)], stream)
            case ("synchronize",):
                allocator.synchronize()
            case ("empty_cache",):
                allocator.empty_cache()
            case ("reset_peaks",):
                allocator.statistics.reset_peaks()
            case "settings", text:
                allocator.settings = AllocatorSettings.parse(text)

    def allocate(self, size: int, stream: int) -> None:
        try:
            block = self.allocator.allocate(size, stream)
        except OutOfMemoryError:
            self.refused += 1
            self.places.append(-1)
            return
        assert block.size >= size
        assert (block.stream, block.requested_bytes) == (stream, size)
        assert self.allocator.block_at(block.address) is block
        self.held.append(block)
        self.places.append(block.address)

    def free_all(self) -> None:
        while self.held:
            self.allocator.free(self.held.pop())
        self.allocator.synchronize()


def laws_broken(player: Player) -> list[str]:
    """What cannot be, in words; empty when all is well."""
    return [*layout_broken(player), *pools_broken(player.allocator), *sums_broken(player)]


def layout_broken(player: Player) -> Iterator[str]:
    """Segments, the blocks within, and how they are linked."""
    allocator = player.allocator
    segments = allocator.segments()
    flat = [block for blocks in segments for block in blocks]
    for first, second in pairwise(flat):
        if first.address + first.size > second.address:
            yield f"blocks overlap at {second.address:x}"
    given: dict[int, int] = {}
    mapped: set[int] = set()
    for blocks in segments:
        head, size = blocks[0], sum(block.size for block in blocks)
        if head.segment is None:
            given[head.address] = size
            if head.previous is not None or blocks[-1].next is not None:
                yield f"the segment at {head.address:x} has no end"
        else:
            mapped.update(range(head.address // MIB, (head.address + size) // MIB))
        for before, after in pairwise(blocks):
            if before.next is not after or after.previous is not before:
                yield f"no link both ways at {after.address:x}"
            if before.address + before.size != after.address:
                yield f"a gap before {after.address:x}"
            if before.is_available and after.is_available:
                yield f"free neighbours at {after.address:x}"
            if (before.stream, before.pool) != (after.stream, after.pool):
                yield f"blocks of two kinds at {after.address:x}"
    if given != player.given or mapped != player.mapped:
        yield "segments are not what the device gave"
    if {id(block) for block in flat if block.is_allocated} != {id(block) for block in player.held}:
        yield "allocated is not what is held"
    for block in flat:
        if block.size <= 0 or block.size % 512 or block.address % 512:
            yield f"no whole 512 bytes at {block.address:x}"


def pools_broken(allocator: CachingAllocator) -> Iterator[str]:
    """Free blocks wait in their pools, each under its own size; unmapped ranges likewise."""
    flat = [block for blocks in allocator.segments() for block in blocks]
    for pool in (allocator._small, allocator._large):
        free = [block for block in flat if block.is_available and block.pool is pool]
        waiting = [(stream, row) for stream, rows in pool.free.items() for row in rows]
        if sorted(map(id, free)) != sorted(id(row[2]) for _, row in waiting):
            yield "a pool is not the free blocks of its segments"
        for stream, (size, address, block) in waiting:
            if (size, address, stream) != (block.size, block.address, block.stream):
                yield f"the pool knows another block at {block.address:x}"
        for rows in pool.free.values():
            if [row[:2] for row in rows] != sorted(row[:2] for row in rows):
                yield "a pool is not in order"
        for stream, places in pool.unmapped.items():
            for address, block in places:
                if (address, stream, False) != (block.address, block.stream, block.is_mapped):
                    yield f"no room at {block.address:x}"
                after = block.next
                if after is not None and not after.is_mapped:
                    yield f"room twice at {block.address:x}"


def sums_broken(player: Player) -> Iterator[str]:
    """Every figure of `memory_stats`, counted again; the limits."""
    allocator = player.allocator
    nested = allocator.statistics.as_nested_dict(allocator.settings.max_split_bytes)
    segments = allocator.segments()
    for name, is_small in (("all", None), ("small_pool", True), ("large_pool", False)):
        mine = [
            segment
            for segment in segments
            if is_small is None or segment[0].pool.is_small is is_small
        ]
        counted = recount(mine)
        sums = {quantity: nested[quantity][name]["current"] for quantity in counted}
        for quantity, value in counted.items():
            if sums[quantity] != value:
                yield f"{name}: {quantity} is {sums[quantity]}, not {value}"
        for quantity, record in ((key, nested[key][name]) for key in counted):
            if (
                record["peak"] < record["current"]
                or record["allocated"] - record["freed"] != record["current"]
            ):
                yield f"{name}: {quantity} does not add up: {record}"
        if not (
            sums["allocated_bytes"] <= sums["active_bytes"] <= sums["reserved_bytes"]
            and sums["requested_bytes"] <= sums["active_bytes"]
        ):
            yield f"{name}: more is used than there is"
    if allocator.reserved_bytes != nested["reserved_bytes"]["all"]["current"]:
        yield "reserved bytes are two numbers"
    if allocator.reserved_bytes > most_bytes(allocator):
        yield "more is reserved than there is"
    if nested["num_ooms"] != player.refused:
        yield "refusals are not counted"


def most_bytes(allocator: CachingAllocator) -> int:
    """What may be reserved at most.

    torch compares a memory fraction with what is asked for, then maps whole pages: it may be one
    page more.
    """
    most = UNLIMITED if allocator.capacity_bytes is None else allocator.capacity_bytes
    if allocator.allowed_bytes is None:
        return most
    settings = allocator.settings
    page_bytes = max(settings.large_segment_bytes, SMALL_SEGMENT_BYTES)
    return min(most, allocator.allowed_bytes + (page_bytes if settings.is_expandable else 0))


def recount(segments: list[list[Block]]) -> dict[str, int]:
    """The figures of these segments, from their blocks."""
    flat = [block for blocks in segments for block in blocks]
    allocated = [block for block in flat if block.is_allocated]
    active = [block for block in flat if not block.is_available]
    rests = [
        block for block in flat if block.is_available and block.is_split and block.segment is None
    ]
    return {
        "allocation": len(allocated),
        "allocated_bytes": sum(block.size for block in allocated),
        "active": len(active),
        "active_bytes": sum(block.size for block in active),
        "requested_bytes": sum(block.requested_bytes for block in active),
        "inactive_split": len(rests),
        "inactive_split_bytes": sum(block.size for block in rests),
        "segment": sum(blocks[0].segment is None for blocks in segments),
        "reserved_bytes": sum(block.size for block in flat),
    }


# Random requests -------------------------------------------------------------------------------

SIZES = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(1, 2 * MIB),
    st.integers(1, 64 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 20 * MIB, 32 * MIB]),
)
STREAMS = st.sampled_from([0, 0, 0, 7])
INDEX = st.integers(0, 99)
EVENTS: st.SearchStrategy[list[Event]] = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), SIZES, STREAMS),
        st.tuples(st.just("alloc"), SIZES, STREAMS),
        st.tuples(st.just("alloc"), SIZES, STREAMS),
        st.tuples(st.just("free"), INDEX),
        st.tuples(st.just("free"), INDEX),
        st.tuples(st.just("record_stream"), INDEX, STREAMS),
        st.sampled_from([("synchronize",), ("empty_cache",), ("reset_peaks",)]),
    ),
    max_size=50,
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "max_split_size_mb": st.integers(20, 50),
        "max_non_split_rounding_mb": st.integers(20, 50),
        "large_segment_size_mb": st.integers(11, 40),
        "garbage_collection_threshold": st.sampled_from([0.1, 0.5, 0.9]),
        "per_process_memory_fraction": st.sampled_from([0.25, 0.5, 1.0]),
        "expandable_segments": st.booleans(),
        "roundup_power2_divisions": st.sampled_from(["4", "16", "[1:2,16:4,>:8]"]),
    },
)
CAPACITIES = st.sampled_from([None, 30 * MIB, 100 * MIB, 250 * MIB])


@st.composite
def allocators(draw: st.DrawFn) -> Callable[[], CachingAllocator]:
    """Makes the same empty allocator as often as it is asked."""
    text = ",".join(f"{key}:{value}" for key, value in draw(OPTIONS).items())
    capacity_bytes = draw(CAPACITIES)
    chosen = AllocatorSettings.parse(text)
    return lambda: CachingAllocator(chosen, capacity_bytes=capacity_bytes)


def fits_alone(allocator: CachingAllocator, size: int) -> bool:
    """Whether a request can be served when nothing else is held."""
    rounded = allocator.rounded_bytes(size)
    segment_bytes = given_bytes = allocator.segment_bytes(rounded)
    if allocator.settings.is_expandable:
        is_small = rounded <= MIB
        page_bytes = SMALL_SEGMENT_BYTES if is_small else allocator.settings.large_segment_bytes
        given_bytes = -(-rounded // page_bytes) * page_bytes
    capacity_bytes, allowed_bytes = allocator.capacity_bytes, allocator.allowed_bytes
    return (capacity_bytes is None or given_bytes <= capacity_bytes) and (
        allowed_bytes is None or segment_bytes <= allowed_bytes
    )


@given(make=allocators(), events=EVENTS)
@settings(deadline=None)
def test_the_laws_hold_after_every_event(
    make: Callable[[], CachingAllocator], events: list[Event]
) -> None:
    player = Player(make())
    for event in events:
        player.play(event)
        assert laws_broken(player) == [], event


CHANGES = st.sampled_from(["", "expandable_segments:True", "max_split_size_mb:20"])


@given(events=EVENTS, changes=st.lists(st.tuples(st.integers(0, 50), CHANGES), max_size=3))
@settings(deadline=None)
def test_the_laws_hold_when_settings_change_in_between(
    events: list[Event], changes: list[tuple[int, str]]
) -> None:
    """As by `torch.cuda.memory._set_allocator_settings`; blocks of both kinds live together."""
    player = Player(CachingAllocator(capacity_bytes=250 * MIB))
    for place, text in changes:
        events.insert(place, ("settings", text))
    for event in events:
        player.play(event)
        assert laws_broken(player) == [], event
    player.free_all()
    player.allocator.empty_cache()
    assert player.allocator.reserved_bytes == 0


@given(make=allocators(), events=EVENTS)
@settings(deadline=None)
def test_what_is_all_freed_is_whole_again_and_goes_back(
    make: Callable[[], CachingAllocator], events: list[Event]
) -> None:
    player = Player(make())
    for event in events:
        player.play(event)
    player.free_all()
    assert laws_broken(player) == []
    assert all(len(blocks) == 1 for blocks in player.allocator.segments())
    player.allocator.empty_cache()
    assert laws_broken(player) == []
    assert player.allocator.reserved_bytes == 0
    assert (player.given, player.mapped) == ({}, set())


@given(make=allocators(), events=EVENTS, size=SIZES)
@example(
    make=lambda: CachingAllocator(AllocatorSettings(), capacity_bytes=12 * MIB),
    events=[("alloc", 10 * MIB, 0)],
    size=MIB + 1,
)
@settings(deadline=None)
def test_a_request_is_refused_only_where_it_cannot_be_served(
    make: Callable[[], CachingAllocator], events: list[Event], size: int
) -> None:
    """With everything freed, what fits the device at all is served. What does not is refused,
    unless a segment is kept that it goes into: one of its own would be larger.
    """
    player = Player(make())
    for event in events:
        player.play(event)
    player.free_all()
    allocator = player.allocator
    refused = player.refused
    kept_bytes = max((block.size for blocks in allocator.segments() for block in blocks), default=0)
    player.allocate(size, 0)
    is_served = player.refused == refused
    assert is_served or not fits_alone(allocator, size)
    assert not is_served or (
        fits_alone(allocator, size) or allocator.rounded_bytes(size) <= kept_bytes
    )
    assert laws_broken(player) == []


@given(make=allocators(), events=EVENTS)
@settings(deadline=None)
def test_the_same_requests_find_the_same_places(
    make: Callable[[], CachingAllocator], events: list[Event]
) -> None:
    first, second = Player(make()), Player(make())
    for event in events:
        first.play(event)
        second.play(event)
    assert first.places == second.places
    assert first.given == second.given


def test_after_a_refusal_the_same_request_is_served_as_soon_as_there_is_room() -> None:
    """100 MiB hold two blocks of 40, not three; one back, and the third has a place."""
    player = Player(CachingAllocator(capacity_bytes=100 * MIB))
    for _ in range(3):
        player.allocate(40 * MIB, 0)
    assert (player.refused, player.allocator.reserved_bytes) == (1, 80 * MIB)
    assert laws_broken(player) == []
    player.play(("free", 0))
    player.allocate(40 * MIB, 0)
    assert (player.refused, player.allocator.reserved_bytes) == (1, 80 * MIB)
    assert player.places[3] == player.places[0]
    assert laws_broken(player) == []


def test_what_cannot_go_back_by_itself_is_not_given_back() -> None:
    """Of unsplittable blocks in the cache, pages and rests of segments stay where they are."""
    text = "max_split_size_mb:20,expandable_segments:True"
    player = Player(CachingAllocator(AllocatorSettings.parse(text), capacity_bytes=100 * MIB))
    for size in (40, 60):
        player.allocate(size * MIB, 0)
    player.play(("free", 0))
    player.allocate(10 * MIB, 0)  # 40 MiB are too large for it, and not one segment
    assert laws_broken(player) == []
    assert (player.refused, player.allocator.reserved_bytes) == (0, 80 * MIB)
    text = "max_split_size_mb:20,large_segment_size_mb:32"
    player = Player(CachingAllocator(AllocatorSettings.parse(text), capacity_bytes=32 * MIB))
    player.allocate(2 * MIB, 0)
    player.allocate(2 * MIB, 0)  # 30 MiB are left, and may not be split
    assert laws_broken(player) == []
    assert (player.refused, player.allocator.reserved_bytes) == (1, 32 * MIB)


# The checker finds what is broken --------------------------------------------------------------


def some_blocks(text: str = "") -> Player:
    """Three blocks of 2 MiB of 20, the middle one free again; a small one."""
    player = Player(CachingAllocator(AllocatorSettings.parse(text), capacity_bytes=100 * MIB))
    for size in (ROUND_LARGE_BYTES, ROUND_LARGE_BYTES, ROUND_LARGE_BYTES, 512):
        player.allocate(size, 0)
    player.play(("free", 1))
    assert laws_broken(player) == []
    return player


def overlap(player: Player) -> None:
    player.held[0].size += 512


def unlink(player: Player) -> None:
    after = player.held[0].next
    assert after is not None
    after.previous = None


def leave_apart(player: Player) -> None:
    """The free block in the middle becomes two, both in the pool."""
    allocator = player.allocator
    free = player.held[0].next
    assert free is not None
    allocator._large.remove(free)
    rest = Block(free.address + 512, free.size - 512, 0, free.pool, free.segment)
    rest.previous, rest.next, free.next, free.size = free, free.next, rest, 512
    assert rest.next is not None
    rest.next.previous = rest
    for block in (free, rest):
        allocator._large.insert(block)


def lose(player: Player) -> None:
    free = player.held[0].next
    assert free is not None
    player.allocator._large.remove(free)


def misplace(player: Player) -> None:
    rows = player.allocator._large.free[0]
    rows[0] = (rows[0][0] + 512, *rows[0][1:])


def count_wrong(player: Player) -> None:
    player.allocator.statistics.all.bytes += 512


def reserve_wrong(player: Player) -> None:
    player.allocator.reserved_bytes += MIB


def shrink_device(player: Player) -> None:
    player.allocator.capacity_bytes = 21 * MIB


def refuse_silently(player: Player) -> None:
    player.refused += 1


def forget_segment(player: Player) -> None:
    player.given.clear()
    player.mapped.clear()


def drop(player: Player) -> None:
    player.held.pop()


@pytest.mark.parametrize("text", ["", "expandable_segments:True"])
@pytest.mark.parametrize(
    ("spoil", "broken"),
    [
        (overlap, "blocks overlap"),
        (unlink, "no link both ways"),
        (leave_apart, "free neighbours"),
        (lose, "a pool is not the free blocks"),
        (misplace, "the pool knows another block"),
        (count_wrong, "all: allocated_bytes is 4195328, not 4194816"),  # two of 2 MiB, one of 512
        (reserve_wrong, "reserved bytes are two numbers"),
        (shrink_device, "more is reserved than there is"),
        (refuse_silently, "refusals are not counted"),
        (forget_segment, "segments are not what the device gave"),
        (drop, "allocated is not what is held"),
    ],
)
def test_a_broken_law_is_found(spoil: Callable[[Player], None], broken: str, text: str) -> None:
    player = some_blocks(text)
    spoil(player)
    assert any(law.startswith(broken) for law in laws_broken(player)), laws_broken(player)

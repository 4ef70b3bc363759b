"""The examples of PyTorch's documentation and of its source's comments, by hand.

Sizes and limits are those of c10/cuda/CUDACachingAllocator.cpp.
"""

from dataclasses import dataclass

import pytest

from torchtally.memory.allocator import AllocatorSettings, Block, CachingAllocator, OutOfMemoryError
from torchtally.memory.allocator.out_of_memory import torch_size

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def allocator(
    text: str = "", capacity_bytes: int | None = None, total_bytes: int | None = None
) -> CachingAllocator:
    return CachingAllocator(
        AllocatorSettings.parse(text), capacity_bytes=capacity_bytes, total_bytes=total_bytes
    )


def sizes(model: CachingAllocator) -> list[list[int]]:
    """Of the blocks of every segment, by address; free ones negative."""
    return [
        [-block.size if block.is_available else block.size for block in blocks]
        for blocks in model.segments()
    ]


# Sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requested", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB - 511, MIB, 2 * MIB),
        (MIB, MIB, 2 * MIB),  # the largest that is packed into 2 MiB
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),  # the largest that shares 20 MiB
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB, 12 * MIB),  # what is over, 2 MiB less 512, is too small to keep
        (12 * MIB, 12 * MIB, 12 * MIB),
        (31 * MIB, 32 * MIB, 32 * MIB),  # 1 MiB over: more is needed for a rest
        (31 * MIB - 1, 32 * MIB, 32 * MIB),
        (GIB, GIB, GIB),
    ],
)
def test_what_a_request_takes_of_an_empty_device(requested: int, block: int, segment: int) -> None:
    model = allocator()
    taken = model.allocate(requested)
    assert model.reserved_bytes == segment
    assert model.rounded_bytes(requested) == -(-requested // 512) * 512
    assert taken.size == expected_block(requested, block, segment)


def expected_block(requested: int, block: int, segment: int) -> int:
    """A rest in the large pool is split off above 1 MiB."""
    rounded = -(-requested // 512) * 512
    return rounded if requested <= MIB or segment - rounded > MIB else block


def test_a_rest_of_the_large_pool_is_split_off_above_1_mib() -> None:
    for requested, blocks in (
        (19 * MIB - 512, [19 * MIB - 512, -MIB - 512]),
        (19 * MIB, [20 * MIB]),
        (19 * MIB + 512, [20 * MIB]),
    ):
        model = allocator()
        model.free(model.allocate(20 * MIB))
        model.allocate(requested)
        assert sizes(model) == [blocks]
        assert model.allocated_bytes == blocks[0]


def test_a_rest_of_the_small_pool_is_split_off_from_512_bytes_on() -> None:
    model = allocator()
    first = model.allocate(MIB)
    model.allocate(MIB - 512)
    assert sizes(model) == [[MIB, MIB - 512, -512]]
    model.free(first)
    model.allocate(MIB - 512)
    assert sizes(model) == [[MIB - 512, -512, MIB - 512, -512]]
    model.allocate(512)
    model.allocate(512)
    assert sizes(model) == [[MIB - 512, 512, MIB - 512, 512]]
    model.allocate(1)
    assert sizes(model)[1:] == [[512, -(2 * MIB - 512)]]


def test_a_segment_of_2_mib_holds_4096_small_blocks() -> None:
    model = allocator()
    for _ in range(4096):
        model.allocate(1)
    assert (model.reserved_bytes, model.allocated_bytes) == (2 * MIB, 2 * MIB)
    model.allocate(1)
    assert model.reserved_bytes == 4 * MIB


# Choice ----------------------------------------------------------------------------------------


def test_the_smallest_block_that_holds_it_is_taken_and_of_equals_the_lowest() -> None:
    model = allocator()
    kept = [model.allocate(size * MIB) for size in (30, 12, 14, 12)]
    places = [block.address for block in kept]
    for block in kept:
        model.free(block)
    addresses = [model.allocate(11 * MIB + 1).address for _ in range(4)]
    assert addresses == [places[1], places[3], places[2], places[0]]
    assert model.reserved_bytes == (30 + 12 + 14 + 12) * MIB


def test_small_and_large_requests_share_nothing() -> None:
    model = allocator()
    model.free(model.allocate(20 * MIB))
    model.allocate(MIB)
    assert sizes(model) == [[-20 * MIB], [MIB, -MIB]]


def test_streams_share_nothing() -> None:
    model = allocator()
    first = model.allocate(512, stream=0)
    place = first.address
    model.free(first)
    second = model.allocate(512, stream=7)
    assert second.address != place
    assert model.reserved_bytes == 4 * MIB
    assert model.allocate(512, stream=0).address == place


def test_a_block_that_another_stream_uses_waits() -> None:
    """Allocated no longer, active still; given away after the device was waited for."""
    model = allocator()
    block = model.allocate(10 * MIB)
    model.record_stream(block, 7)
    model.free(block)
    assert (model.allocated_bytes, model.statistics.all.pending_bytes) == (0, 10 * MIB)
    other = model.allocate(10 * MIB)
    assert other.address != block.address
    model.synchronize()
    assert model.allocate(10 * MIB).address == block.address
    assert model.reserved_bytes == 20 * MIB


def test_a_blocks_own_stream_does_not_hold_it() -> None:
    model = allocator()
    block = model.allocate(512)
    place = block.address
    model.record_stream(block, 0)
    model.free(block)
    assert model.allocate(512).address == place


# max_split_size --------------------------------------------------------------------------------


def test_blocks_of_max_split_size_are_not_split() -> None:
    """100 MiB free: 30 MiB of it without a limit, a segment of its own with a limit of 50."""
    for text, segments in (
        ("", [[30 * MIB, -70 * MIB]]),
        ("max_split_size_mb:50", [[-100 * MIB], [30 * MIB]]),
    ):
        model = allocator(text)
        model.free(model.allocate(100 * MIB))
        model.allocate(30 * MIB)
        assert sizes(model) == segments


def test_an_unsplittable_block_serves_requests_up_to_20_mib_smaller() -> None:
    model = allocator("max_split_size_mb:50")
    model.free(model.allocate(100 * MIB))
    block = model.allocate(80 * MIB + 512)
    assert (block.size, model.reserved_bytes) == (100 * MIB, 100 * MIB)
    model.free(block)
    assert model.allocate(80 * MIB).size == 80 * MIB
    assert sizes(model) == [[-100 * MIB], [80 * MIB]]
    wider = allocator("max_split_size_mb:50,max_non_split_rounding_mb:40")
    wider.free(wider.allocate(100 * MIB))
    assert wider.allocate(80 * MIB).size == 100 * MIB


def test_unsplittable_blocks_go_back_first_and_only_as_many_as_needed() -> None:
    """200 MiB: cached 60 and 100, wanted 80: the 100 alone goes back."""
    model = allocator("max_split_size_mb:50", capacity_bytes=200 * MIB)
    kept = [model.allocate(size * MIB) for size in (60, 110)]
    for block in kept:
        model.free(block)
    model.allocate(80 * MIB)
    assert sizes(model) == [[-60 * MIB], [80 * MIB]]
    assert model.statistics.alloc_retries == 0


# Out of memory ---------------------------------------------------------------------------------


def test_cached_segments_go_back_before_a_request_is_refused_and_that_is_a_retry() -> None:
    model = allocator(capacity_bytes=100 * MIB)
    kept = [model.allocate(30 * MIB) for _ in range(3)]
    for block in kept[:2]:
        model.free(block)
    model.allocate(60 * MIB)
    assert model.statistics.alloc_retries == 1
    assert model.statistics.device_frees == 2
    assert sizes(model) == [[30 * MIB], [60 * MIB]]
    with pytest.raises(OutOfMemoryError):
        model.allocate(30 * MIB)
    assert (model.statistics.alloc_retries, model.statistics.ooms) == (2, 1)
    assert (model.reserved_bytes, model.allocated_bytes) == (90 * MIB, 90 * MIB)


def fragmented(text: str) -> CachingAllocator:
    """Batches of a size that grows: 20, 21, 22 ... MiB, one freed before the next, 60 MiB in all.

    Documentation, `expandable_segments`: every size is too large for the segments before.
    """
    model = allocator(text, capacity_bytes=60 * MIB)
    pair: list[Block] = []
    for size in (20, 22, 24):
        for block in pair:
            model.free(block)
        pair = [model.allocate(size * MIB)]
    return model


def test_batches_that_grow_leave_segments_behind_or_one_that_grows() -> None:
    plain, expandable = fragmented(""), fragmented("expandable_segments:True")
    assert plain.statistics.alloc_retries == 1  # 20 + 22 + 24 > 60: the first two went back
    assert expandable.statistics.alloc_retries == 0
    assert (plain.reserved_bytes, expandable.reserved_bytes) == (24 * MIB, 40 * MIB)
    assert len(expandable.segments()) == 1


def holes(text: str) -> CachingAllocator:
    """100 MiB in segments of 20; every second block of 10 is free."""
    model = allocator(text, capacity_bytes=100 * MIB)
    kept = [model.allocate(10 * MIB - 512) for _ in range(10)]
    for block in kept[::2]:
        model.free(block)
    return model


def test_memory_in_pieces_serves_one_request_where_segments_expand() -> None:
    """40 MiB are free on the device in either case; only pages can be put together anew.

    Two neighbours of 20 MiB each are freed: two segments, or one range.
    """
    plain, expandable = (
        allocator(text, capacity_bytes=100 * MIB) for text in ("", "expandable_segments:True")
    )
    for model in (plain, expandable):
        kept = [model.allocate(20 * MIB) for _ in range(5)]
        assert model.reserved_bytes == 100 * MIB
        for block in kept[1:3]:
            model.free(block)
    assert sizes(plain) == [[20 * MIB], [-20 * MIB], [-20 * MIB], [20 * MIB], [20 * MIB]]
    assert sizes(expandable) == [[20 * MIB, -40 * MIB, 20 * MIB, 20 * MIB]]
    plain.allocate(40 * MIB)
    expandable.allocate(40 * MIB)
    assert (plain.statistics.alloc_retries, expandable.statistics.alloc_retries) == (1, 0)
    # Blocks within segments are another matter: nothing of it can go back.
    plain, expandable = holes(""), holes("expandable_segments:True")
    with pytest.raises(OutOfMemoryError):
        plain.allocate(12 * MIB)
    with pytest.raises(OutOfMemoryError):
        expandable.allocate(12 * MIB)


def test_a_fragmented_device_refuses_what_an_expandable_segment_holds() -> None:
    """60 MiB: 30 held, 9 in each of three segments of 20; with pages, 30 fit behind them."""
    plain, expandable = (
        allocator(text, capacity_bytes=60 * MIB) for text in ("", "expandable_segments:True")
    )
    for model in (plain, expandable):
        blocks = [model.allocate(9 * MIB) for _ in range(6)]
        for block in blocks[1::2]:
            model.free(block)
    assert sizes(plain) == [[9 * MIB, -11 * MIB]] * 3
    assert expandable.allocated_bytes == plain.allocated_bytes == 27 * MIB
    with pytest.raises(OutOfMemoryError):
        plain.allocate(15 * MIB)
    expandable.allocate(15 * MIB)  # 9 x 6 = 54 of 60 MiB are mapped: 9 free and 6 at the end
    assert expandable.allocated_bytes == 42 * MIB
    assert expandable.reserved_bytes == 60 * MIB


def test_a_memory_fraction_is_the_limit() -> None:
    model = allocator("per_process_memory_fraction:0.5", capacity_bytes=100 * MIB)
    model.allocate(50 * MIB)
    with pytest.raises(OutOfMemoryError) as refusal:
        model.allocate(1)
    assert refusal.value.allowed_bytes == 50 * MIB
    assert "50.00 MiB allowed; Of the allocated memory 50.00 MiB" in str(refusal.value)
    model.fraction = 1.0
    model.allocate(1)


def test_garbage_above_the_threshold_goes_back_before_new_segments_are_made() -> None:
    """Of 100 MiB 50 may be cached. 30 + 30 free: the next new segment finds them gone."""
    text = "per_process_memory_fraction:1.0,garbage_collection_threshold:0.5"
    model = allocator(text, capacity_bytes=100 * MIB)
    kept = [model.allocate(30 * MIB) for _ in range(2)]
    for block in kept:
        model.free(block)
    assert model.reserved_bytes == 60 * MIB
    model.allocate(40 * MIB)
    assert (model.reserved_bytes, model.statistics.alloc_retries) == (40 * MIB, 0)
    without = allocator("garbage_collection_threshold:0.5", capacity_bytes=100 * MIB)
    for block in [without.allocate(30 * MIB) for _ in range(2)]:
        without.free(block)
    without.allocate(40 * MIB)
    assert without.reserved_bytes == 100 * MIB  # torch collects only where a fraction was set


def test_empty_cache_gives_back_whole_segments_alone() -> None:
    model = allocator()
    first, second, third = (model.allocate(9 * MIB) for _ in range(3))
    model.free(first)
    model.free(third)
    model.empty_cache()
    assert sizes(model) == [[-9 * MIB, 9 * MIB, -2 * MIB]]
    model.free(second)
    model.empty_cache()
    assert (sizes(model), model.reserved_bytes) == ([], 0)


def test_an_expandable_segment_gives_back_whole_pages() -> None:
    """Pages have 20 MiB. 50 MiB held, of them the first 45 freed: 40 go back."""
    model = allocator("expandable_segments:True")
    first, second = model.allocate(45 * MIB), model.allocate(5 * MIB)
    assert model.reserved_bytes == 60 * MIB
    model.free(first)
    model.empty_cache()
    assert model.reserved_bytes == 20 * MIB
    assert sizes(model) == [[-5 * MIB, 5 * MIB, -10 * MIB]]
    model.free(second)
    model.empty_cache()
    assert model.reserved_bytes == 0


# Words -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    bytes: int
    text: str


@pytest.mark.parametrize(
    "size",
    [
        Size(0, "0 bytes"),
        Size(512, "512 bytes"),
        Size(KIB, "1024 bytes"),  # c10's format_size has <=, not <
        Size(KIB + 512, "1.50 KiB"),
        Size(MIB, "1024.00 KiB"),
        Size(20 * MIB, "20.00 MiB"),
        Size(GIB, "1024.00 MiB"),
        Size(GIB + GIB // 4, "1.25 GiB"),
        Size(2048 * GIB, "2048.00 GiB"),
    ],
)
def test_sizes_as_torch_prints_them(size: Size) -> None:
    assert torch_size(size.bytes) == size.text


def test_the_error_word_by_word() -> None:
    """A card of 1 GiB, of which 24 MiB are the context's: 600 held, 200 cached, 300 wanted."""
    model = allocator(capacity_bytes=1000 * MIB, total_bytes=1024 * MIB)
    small = model.allocate(5 * MIB)
    kept = model.allocate(600 * MIB)
    with pytest.raises(OutOfMemoryError) as refusal:
        model.allocate(400 * MIB)
    assert str(refusal.value) == (
        "CUDA out of memory. Tried to allocate 400.00 MiB. "
        "GPU 0 has a total capacity of 1024.00 MiB of which 380.00 MiB is free. "
        "Including non-PyTorch memory, this process has 644.00 MiB memory in use. "
        "Of the allocated memory 605.00 MiB is allocated by PyTorch, "
        "and 15.00 MiB is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
        "See documentation for Memory Management  "
        "(https://docs.pytorch.org/docs/stable/notes/cuda.html"
        "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
    )
    assert (small.size, kept.size) == (5 * MIB, 600 * MIB)


def test_what_was_tried_is_the_segment_not_the_request() -> None:
    model = allocator(capacity_bytes=10 * MIB)
    with pytest.raises(OutOfMemoryError) as refusal:
        model.allocate(2 * MIB)
    assert refusal.value.requested_bytes == 20 * MIB
    assert "Tried to allocate 20.00 MiB." in str(refusal.value)


def test_more_than_an_expandable_segment_has_addresses_for() -> None:
    """Beyond the device it is refused; without an end of memory there is room for anything."""
    settings = AllocatorSettings.parse("expandable_segments:True")
    limited = CachingAllocator(settings, capacity_bytes=100 * MIB)
    with pytest.raises(OutOfMemoryError):
        limited.allocate(1000 * MIB)
    endless = CachingAllocator(settings, total_bytes=100 * MIB)
    assert endless.allocate(1000 * MIB).size == 1000 * MIB

"""A private pool's blocks, written down and put back.

A replayed CUDA graph changes nothing in the allocator, though its results are in its pool again.
Before another graph is captured after it, the pool is put back to where the first one's capture
ended: Note [Checkpointing PrivatePoolState] in c10/cuda/CUDACachingAllocator.cpp.
"""

from typing import NamedTuple

from torchtally.memory.allocator.block import Block, mapped_blocks
from torchtally.memory.allocator.caching import CachingAllocator
from torchtally.memory.allocator.private_pools import PoolId


class BlockState(NamedTuple):
    address: int
    size: int
    is_allocated: bool


class PoolState(NamedTuple):
    pool_id: PoolId
    segments: tuple[tuple[BlockState, ...], ...]


class Restored(NamedTuple):
    freed: tuple[int, ...]
    """Addresses of the blocks that were allocated before."""
    allocated: tuple[Block, ...]
    """Those that are now."""


def checkpoint(allocator: CachingAllocator, pool_id: PoolId) -> PoolState:
    return PoolState(
        pool_id,
        tuple(
            tuple(
                BlockState(block.address, block.size, block.is_allocated)
                for block in mapped_blocks(head)
            )
            for head in heads(allocator, pool_id)
        ),
    )


def restore(allocator: CachingAllocator, state: PoolState) -> Restored:
    """Put a pool back to a state of it; it may have more segments now, which are free then.

    All blocks of a segment are handed out, and those that were free are given back, as torch does:
    for a moment more is allocated.
    """
    held = [
        block
        for head in heads(allocator, state.pool_id)
        for block in mapped_blocks(head)
        if block.is_allocated
    ]
    freed = tuple(block.address for block in held)
    for block in held:
        allocator.free(block)
    allocated: list[Block] = []
    first = {head.address: head for head in heads(allocator, state.pool_id)}
    for segment in state.segments:
        rest: Block | None = first[segment[0].address]
        blocks = []
        for each in segment:
            assert rest is not None, "the segment is at least as large as it was"
            rest.pool.remove(rest)
            block = allocator.hand_out(rest, each.size, each.size, splits=rest.size > each.size)
            blocks.append(block)
            rest = block.next
        for block, each in zip(blocks, segment, strict=True):
            if each.is_allocated:
                allocated.append(block)
            else:
                allocator.free(block)
    return Restored(freed, tuple(allocated))


def heads(allocator: CachingAllocator, pool_id: PoolId) -> list[Block]:
    """The first block of each segment of a pool."""
    return [
        blocks[0]
        for blocks in allocator.segments()
        if blocks[0].pool.owner == pool_id and blocks[0].previous is None
    ]

"""Segments and settings in the words of `torch.cuda.memory._snapshot()`.

The viewers of such snapshots read plain dictionaries, lists, strings and numbers alone.
"""

from collections.abc import Sequence
from typing import Any

from torchtally.memory.allocator.block import Block
from torchtally.memory.allocator.settings import AllocatorSettings

SNAPSHOT_PROTOCOL = 4
"""Of the pickle: the viewer in the web read no later one before 2026 (pytorch issue 183842)."""


def segment_record(blocks: Sequence[Block], device: int) -> dict[str, Any]:
    """A segment of the device of this number with its blocks, in bytes."""
    head = blocks[0]
    active = [block for block in blocks if not block.is_available]
    return {
        "device": device,
        "address": head.address,
        "total_size": sum(block.size for block in blocks),
        "allocated_size": sum(block.size for block in blocks if block.is_allocated),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested_bytes for block in active),
        "stream": head.stream,
        "segment_type": "small" if head.pool.is_small else "large",
        "segment_pool_id": head.pool.owner,
        "is_expandable": head.segment is not None,
        "frames": [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested_bytes,
                "state": state_of(block),
                "frames": [] if block.is_available else list(block.frames or ()),
            }
            for block in blocks
        ],
    }


def state_of(block: Block) -> str:
    if block.is_allocated:
        return "active_allocated"
    return "active_pending_free" if block.is_pending else "inactive"


def settings_record(settings: AllocatorSettings) -> dict[str, Any]:
    return {
        "PYTORCH_CUDA_ALLOC_CONF": settings.text,
        "max_split_size": settings.max_split_bytes if settings.max_split_bytes < 2**63 else -1,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.is_expandable,
        "pinned_num_register_threads": 1,
        "release_lock_on_cudamalloc": False,
        "pinned_use_cuda_host_register": False,
        "roundup_power2_divisions": {
            str(1 << interval): divisions
            for interval, divisions in enumerate(settings.roundup_power2_divisions)
        },
    }

"""A model of CUDA's caching allocator: which segments and blocks a run of requests makes."""

from torchtally.allocator.block import Block
from torchtally.allocator.caching import CachingAllocator
from torchtally.allocator.out_of_memory import OutOfMemoryError
from torchtally.allocator.replay import Replayed, replay
from torchtally.allocator.settings import AllocatorSettings

__all__ = [
    "AllocatorSettings",
    "Block",
    "CachingAllocator",
    "OutOfMemoryError",
    "Replayed",
    "replay",
]

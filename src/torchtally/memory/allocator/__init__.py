"""A model of CUDA's caching allocator: which segments and blocks a run of requests makes."""

from torchtally.memory.allocator.block import Block
from torchtally.memory.allocator.caching import CachingAllocator
from torchtally.memory.allocator.checkpoint import PoolState, checkpoint, restore
from torchtally.memory.allocator.out_of_memory import OutOfMemoryError
from torchtally.memory.allocator.private_pools import PoolId, Takes
from torchtally.memory.allocator.replay import Player, replay
from torchtally.memory.allocator.settings import AllocatorSettings
from torchtally.memory.allocator.snapshot import segment_record, settings_record

"""Bytes held: by a trace's tensors over its clock, by the allocator, and by no tensor.

occupancy    storages over the clock, and the category each belongs to
allocator/   a model of CUDA's caching allocator
workspace/   memory that libraries keep and operators use up
"""

from torchtally.memory.occupancy import Category, Memory, is_alive, replay, timeline

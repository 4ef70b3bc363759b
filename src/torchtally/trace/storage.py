"""A block of device memory: what a tensor and all its views share."""

from enum import StrEnum

from torchtally.trace.record import Count, Record, Tick

ROUND_BYTES = 512
"""CUDA's caching allocator rounds every request up to this (c10/cuda/CUDACachingAllocator)."""


def allocated_bytes(requested_bytes: int) -> int:
    """What a request for so many bytes adds to `torch.cuda.memory_allocated()`."""
    return -(-requested_bytes // ROUND_BYTES) * ROUND_BYTES


class Role(StrEnum):
    """What a storage is for, where the script says so; the others follow from data flow."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    WORKSPACE = "workspace"
    """Scratch memory of a library or an operator, named by `Storage.name`; not a tensor."""
    KV_CACHE = "kv_cache"
    """What one pass of a generating run keeps for the next. Never recorded: `steps` tells."""


class Storage(Record, frozen=True):
    """A storage lives at every clock tick from `born` up to, not including, `died`."""

    number: int
    device: str
    requested_bytes: Count
    born: Tick
    """The tick of the op that allocated it."""
    died: Tick | None
    """None: still alive when the trace ended."""
    role: Role | None = None
    name: str = ""
    """The parameter's or buffer's path in its model, where it has one."""
    stream: int = 0
    """The stream that was current when it was allocated."""
    spare_bytes: Count = 0
    """What its block has beyond the request rounded up to 512: rests too small to split off."""

    is_trained: bool = False
    """A parameter that requires grad, or that is updated by hand; the others are frozen."""
    whole_elements: Count = 0
    """Of a rank's shard: elements of the whole parameter; 0 where it is whole."""
    pool: int = 0
    """The private pool of CUDA graphs that its block is from; 0: none."""

    @property
    def bytes(self) -> int:
        """Bytes as the allocator counts them in `torch.cuda.memory_allocated()`."""
        return allocated_bytes(self.requested_bytes) + self.spare_bytes

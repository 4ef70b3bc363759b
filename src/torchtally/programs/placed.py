"""A trace's storages placed by the model of CUDA's caching allocator."""

from msgspec.structs import replace

from torchtally.memory.allocator import AllocatorSettings, Block, CachingAllocator
from torchtally.memory.allocator.replay import NEVER, Player
from torchtally.trace import Reserved, Trace
from torchtally.trace.storage import allocated_bytes


def placed(trace: Trace) -> Trace:
    """The trace with what its blocks have to spare, and the segments reserved for them.

    The allocator serves the requests in the trace's order, on a device without an end.
    """
    spare: dict[int, int] = {}
    reserved: list[Reserved] = []
    for device in sorted({storage.device for storage in trace.storages}):
        place(trace, device, spare, reserved)
    return replace(
        trace,
        storages=tuple(
            replace(storage, spare_bytes=spare.get(storage.number, 0)) for storage in trace.storages
        ),
        reserved=tuple(reserved),
    )


def place(trace: Trace, device: str, spare: dict[int, int], reserved: list[Reserved]) -> None:
    """Play what one device allocates: spare bytes by storage, and changes of what is reserved."""
    allocator = CachingAllocator(AllocatorSettings.parse(trace.allocator_settings))
    player = Player(trace, device, allocator)
    before = 0

    def happened(action: str, address: int, size: int, stream: int, block: Block | None) -> None:
        nonlocal before
        if action == "alloc" and block is not None and player.storage is not None:
            spare[player.storage.number] = block.size - allocated_bytes(size)
        if allocator.reserved_bytes != before:
            before = allocator.reserved_bytes
            reserved.append(Reserved(device, player.tick, before))

    allocator.happened = happened
    player.play_to(NEVER)

"""A memory snapshot as a trace: an operator for each allocation, a storage for each block.

The snapshot gives a block the bytes that were asked for. What the allocator made of them (rounding,
rests too small to split off) follows from its rules, since it is deterministic: the requests are
played through the model of `memory/allocator`.

Known limits. A history that begins late, or that has lost its beginning (`max_entries`), has blocks
from before: their sizes are those of the end, and which of them lay where is not known, so rests
are left out there. What a block is for is told by its stack as far as that goes: the optimizer's
state, a module's parameters; nothing tells an activation from a temporary.
"""

import linecache
import os
from collections import defaultdict
from typing import NamedTuple

import msgspec

from torchtally.memory.allocator import AllocatorSettings, Block, CachingAllocator
from torchtally.profiles.profile import DEVICE
from torchtally.profiles.snapshot import MemorySnapshot, StackFrame
from torchtally.trace import (
    Call,
    Ending,
    Frame,
    Measured,
    Op,
    Phase,
    Reserved,
    Role,
    Site,
    Storage,
    Trace,
)
from torchtally.trace.storage import allocated_bytes

ALLOCATION = Call("aten.empty_strided", "", (), ())
"""What allocates a tensor, of which nothing but its bytes is known."""
EARLIER = "held before the history began"
MADE_BY = "torch.cuda.memory._dump_snapshot"
MOST_FRAMES = 40
LIBRARIES = ("site-packages/", "dist-packages/")
RESERVES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


class Life(NamedTuple):
    """A block from its allocation on."""

    tick: int
    bytes: int
    stream: int
    role: Role | None


class StackTold(NamedTuple):
    """What the stack of an allocation tells."""

    site: int
    phase: Phase
    role: Role | None


def trace_of_snapshot(snapshot: MemorySnapshot, chip: str = "") -> Trace:
    """The trace. `chip` names the GPU, which a snapshot does not."""
    return AllocatorHistory(snapshot, chip).trace()


class AllocatorHistory:
    def __init__(self, snapshot: MemorySnapshot, chip: str) -> None:
        self.snapshot = snapshot
        self.chip = chip
        self._streams: dict[int, int] = {}
        self._sites: dict[Site, int] = {Site("", "", ()): 0}
        self._stacks: dict[int, StackTold] = {}
        """By the id of its frames, of which the snapshot has each stack's once."""

    def trace(self) -> Trace:
        snapshot = self.snapshot
        ops: list[Op] = []
        lives: list[Life] = []
        deaths: dict[int, int] = {}
        alive: dict[int, int] = {}
        earlier: list[tuple[int, int | None]] = []
        """(bytes, tick of death) of blocks from before."""
        reserved_now = snapshot.reserved_bytes - sum(
            RESERVES.get(event.action, 0) * event.bytes for event in snapshot.events
        )
        reserved = [Reserved(DEVICE, 0, max(0, reserved_now))]
        requested: dict[int, int] = {}
        """Whose free was requested, and will be completed."""
        for event in snapshot.events:
            if event.action in RESERVES:
                reserved_now += RESERVES[event.action] * event.bytes
                reserved.append(Reserved(DEVICE, len(ops), max(0, reserved_now)))
            elif event.action == "alloc":
                alive[event.address] = len(lives)
                stack = self._stack(event.frames)
                lives.append(Life(len(ops), event.bytes, self._stream(event.stream), stack.role))
                ops.append(Op(len(ops), 0, stack.site, stack.phase, (), ()))
            elif event.address in alive:
                deaths[alive.pop(event.address)] = len(ops)
                requested[event.address] = 1
            elif event.action == "free_completed" and event.address in requested:
                del requested[event.address]
            else:
                earlier.append((event.bytes, len(ops)))
        known = {block.address for block in snapshot.held} & set(alive)
        earlier += [
            (block.requested_bytes or block.bytes, None)
            for block in snapshot.held
            if block.address not in known
        ]
        spare = [0] * len(lives) if earlier else self._spare_bytes(lives, deaths)
        storages = [
            Storage(number, DEVICE, size, 0, died, None, EARLIER)
            for number, (size, died) in enumerate(earlier)
            if died is None or died > 0
        ]
        for number, life in enumerate(lives):
            died = deaths.get(number)
            storages.append(
                Storage(
                    len(storages),
                    DEVICE,
                    life.bytes,
                    life.tick,
                    None if died is None else max(died, life.tick + 1),
                    life.role,
                    "",
                    life.stream,
                    spare[number],
                )
            )
        return Trace(
            script=os.path.basename(snapshot.file),
            chip=self.chip,
            torch_version="",
            calls=(ALLOCATION,),
            sites=tuple(self._sites),
            ops=tuple(ops),
            storages=tuple(renumber(storages)),
            step_ends=(),
            ending=Ending("exit"),
            reserved=tuple(reserved),
            allocator_settings=snapshot.settings,
            measured=Measured(
                made_by=MADE_BY,
                file=os.path.basename(snapshot.file),
                names=(),
                kernels=(),
                has_shapes=False,
                has_lines=len(self._sites) > 1,
            ),
        )

    def _spare_bytes(self, lives: list[Life], deaths: dict[int, int]) -> list[int]:
        """What each block has beyond its rounded request, by the allocator's own rules."""
        died_at: dict[int, list[int]] = defaultdict(list)
        for number, tick in deaths.items():
            died_at[tick].append(number)
        allocator = CachingAllocator(AllocatorSettings.parse(self.snapshot.settings))
        blocks: dict[int, Block] = {}
        spare = []
        for number, life in enumerate(lives):
            for gone in died_at.get(life.tick, ()):
                if (block := blocks.pop(gone, None)) is not None:
                    allocator.free(block)
            block = blocks[number] = allocator.allocate(life.bytes, life.stream)
            spare.append(block.size - allocated_bytes(life.bytes))
        return spare

    def _stream(self, address: int) -> int:
        """Streams by number, the default one first: a snapshot has their addresses."""
        if address == 0:
            return 0
        return self._streams.setdefault(address, len(self._streams) + 1)

    def _stack(self, frames: tuple[StackFrame, ...]) -> StackTold:
        stack = self._stacks.get(id(frames))
        if stack is None:
            rows = tuple(
                Frame(
                    place.file,
                    max(place.line, 0),
                    place.function,
                    linecache.getline(place.file, place.line).strip(),
                    is_own(place.file),
                )
                for place in frames
                if is_shown(place.file)
            )[:MOST_FRAMES]
            site = Site("", "", rows)
            number = self._sites.setdefault(site, len(self._sites))
            stack = self._stacks[id(frames)] = StackTold(number, phase_of(frames), role_of(frames))
        return stack


def renumber(storages: list[Storage]) -> list[Storage]:
    return [
        msgspec.structs.replace(storage, number=number) for number, storage in enumerate(storages)
    ]


def is_shown(path: str) -> bool:
    """Python code, but torch's and Python's own."""
    return (
        path.endswith(".py")
        and "/torch/" not in path
        and ("/lib/python3" not in path or any(part in path for part in LIBRARIES))
    )


def is_own(path: str) -> bool:
    return not any(part in path for part in LIBRARIES)


def phase_of(frames: tuple[StackFrame, ...]) -> Phase:
    """Autograd's threads have no Python frames; optimizers step in torch/optim."""
    if any("/torch/optim/" in place.file for place in frames):
        return Phase.OPTIMIZER
    has_python = any(place.file.endswith(".py") for place in frames)
    is_engine = any(place.function == "_engine_run_backward" for place in frames)
    return Phase.FORWARD if has_python and not is_engine else Phase.BACKWARD


def role_of(frames: tuple[StackFrame, ...]) -> Role | None:
    """What the code that allocates makes, where it makes one thing alone."""
    for place in frames:
        if "/torch/optim/" in place.file and place.function == "_init_group":
            return Role.OPTIMIZER_STATE
        if place.file.endswith("/torch/nn/modules/module.py") and place.function in (
            "_apply",
            "convert",
            "param_applied",
        ):
            return Role.PARAMETER
        if place.function in ("reset_parameters", "__init__") and "/torch/nn/" in place.file:
            return Role.PARAMETER
    return None

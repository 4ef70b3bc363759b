"""Bytes held over the clock, and what they are held for.

A storage is alive at every tick t with born <= t < died, and counts with the bytes of its block
in the allocator: their sum is `torch.cuda.memory_allocated()`. What the allocator holds beyond it
is in `Memory.reserved`; the CUDA context is in neither.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, chain

from torchtally.memory.communication import Communication, communication
from torchtally.trace import FORWARD_PHASES, Op, Phase, Role, Storage, Trace
from torchtally.trace.storage import allocated_bytes


class Category(StrEnum):
    """What a storage is held for. Every storage has exactly one."""

    PARAMETERS = "parameters"
    GATHERED_PARAMETERS = "gathered_parameters"
    """Put together from the shards of several ranks, for as long as a module needs them."""
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer_state"
    """With copies of weights kept beside the model: float32 master copies, moving averages."""
    ACTIVATIONS = "activations"
    """Made in the forward pass (or repeated) and read in the backward pass, or read to make again
    what the backward pass reads."""
    INPUTS = "inputs"
    """Made in the forward pass outside any module, from nothing on the device: batches."""
    BUFFERS = "buffers"
    COMMUNICATION_BUFFERS = "communication_buffers"
    """Read or written by collectives, and none of the others: DDP's buckets, what FSDP reduces."""
    TEMPORARIES = "temporaries"
    WORKSPACES = "workspaces"
    """Scratch memory of libraries and within operators: no tensor of the script's."""
    UNKNOWN = "unknown"
    """Of a run that a profiler recorded: which tensor has a block is not in its file."""
    KV_CACHE = "kv_cache"
    """What one pass of a generating run keeps for the next: keys and values, recurrent states."""


CATEGORY_OF_ROLE = {
    Role.PARAMETER: Category.PARAMETERS,
    Role.GRADIENT: Category.GRADIENTS,
    Role.OPTIMIZER_STATE: Category.OPTIMIZER_STATE,
    Role.BUFFER: Category.BUFFERS,
    Role.WORKSPACE: Category.WORKSPACES,
    Role.KV_CACHE: Category.KV_CACHE,
}


@dataclass(frozen=True, slots=True)
class Timeline:
    """Live bytes as a step function: from `ticks[i]` on, `live_bytes[i]` are held."""

    ticks: tuple[int, ...]
    live_bytes: tuple[int, ...]

    def at(self, tick: int) -> int:
        """Bytes held at a tick."""
        place = bisect_right(self.ticks, tick) - 1
        return self.live_bytes[place] if place >= 0 else 0

    @property
    def peak_tick(self) -> int:
        """The first tick at which most is held."""
        if not self.ticks:
            return 0
        return self.ticks[self.live_bytes.index(max(self.live_bytes))]

    def peak_tick_between(self, first: int, end: int) -> int:
        """The first tick of [first, end) at which most is held. `first` must be below `end`."""
        start, stop = bisect_right(self.ticks, first), bisect_left(self.ticks, end)
        most = max(self.live_bytes[start:stop], default=-1)
        if self.at(first) >= most:
            return first
        return self.ticks[self.live_bytes.index(most, start)]

    @property
    def peak_bytes(self) -> int:
        return max(self.live_bytes, default=0)


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one device over a whole run."""

    device: str
    """"cuda:0"; "" when the run put nothing on any device."""
    storages: tuple[Storage, ...]
    """Those of this device."""
    categories: tuple[Category, ...]
    """Of `storages`, in the same order."""
    timeline: Timeline
    at_peak: tuple[tuple[Category, int], ...]
    """Bytes at the peak for every category, in the order of the enum. Sums to `peak_bytes`."""
    communication: Communication
    """Of a run of several ranks: what they share."""

    def __repr__(self) -> str:
        return (
            f"<Memory of {self.device or 'no device'}: {len(self.storages)} storages, "
            f"peak {self.peak_bytes} bytes at tick {self.peak_tick}>"
        )

    @property
    def peak_bytes(self) -> int:
        return self.timeline.peak_bytes

    @property
    def peak_tick(self) -> int:
        return self.timeline.peak_tick

    @property
    def alive_at_peak(self) -> tuple[tuple[Storage, Category], ...]:
        """What is held at the peak, largest first."""
        return self.alive_at(self.peak_tick)

    def alive_at(self, tick: int) -> tuple[tuple[Storage, Category], ...]:
        """What is held at a tick, largest first. Its bytes sum to `timeline.at(tick)`."""
        pairs = zip(self.storages, self.categories, strict=True)
        alive = [(storage, category) for storage, category in pairs if is_alive(storage, tick)]
        return tuple(sorted(alive, key=lambda pair: (-pair[0].bytes, pair[0].number)))

    def by_category(self) -> dict[Category, Timeline]:
        """A timeline for each category; at every tick they sum to `timeline`."""
        parts: dict[Category, list[Storage]] = {category: [] for category in Category}
        for storage, category in zip(self.storages, self.categories, strict=True):
            parts[category].append(storage)
        return {category: timeline(part) for category, part in parts.items()}

    def laws_broken(self) -> Iterator[str]:
        """Violated invariants as text; none when all hold."""
        for storage in self.storages:
            if storage.died is not None and storage.died < storage.born:
                died, born = storage.died, storage.born
                yield f"storage {storage.number} dies at {died}, before its birth at {born}"
        for tick, live_bytes in zip(self.timeline.ticks, self.timeline.live_bytes, strict=True):
            if live_bytes < 0:
                yield f"{live_bytes} bytes are held at tick {tick}"
        total, peak_bytes = sum(held_bytes for _, held_bytes in self.at_peak), self.peak_bytes
        if total != peak_bytes:
            yield f"the categories at the peak sum to {total}, not to {peak_bytes} bytes"


def is_alive(storage: Storage, tick: int) -> bool:
    return storage.born <= tick and (storage.died is None or tick < storage.died)


def replay(trace: Trace, device: str | None = None) -> Memory:
    """The memory of a device, by default of the one with the highest peak."""
    if device is None:
        device = _fullest(trace)
    shared = communication(trace)
    categories = categorise(trace, shared)
    chosen = tuple(storage for storage in trace.storages if storage.device == device)
    kept = tuple(categories[storage.number] for storage in chosen)
    course = timeline(chosen)
    tick = course.peak_tick
    bytes_by_category = dict.fromkeys(Category, 0)
    for storage, category in zip(chosen, kept, strict=True):
        if is_alive(storage, tick):
            bytes_by_category[category] += storage.bytes
    return Memory(device, chosen, kept, course, tuple(bytes_by_category.items()), shared)


def devices(trace: Trace) -> list[str]:
    """The devices that hold storages, the host not among them, in alphabetical order."""
    return sorted({storage.device for storage in trace.storages} - {"cpu"})


def _fullest(trace: Trace) -> str:
    names = devices(trace)
    if len(names) < 2:
        return names[0] if names else ""

    def peak_bytes(name: str) -> int:
        return timeline(storage for storage in trace.storages if storage.device == name).peak_bytes

    return max(names, key=peak_bytes)


def timeline(storages: Iterable[Storage]) -> Timeline:
    """Live bytes of these storages, at every tick where they change."""
    change: dict[int, int] = {}
    for storage in storages:
        size = allocated_bytes(storage.requested_bytes) + storage.spare_bytes
        born, died = storage.born, storage.died
        change[born] = change.get(born, 0) + size
        if died is not None:
            change[died] = change.get(died, 0) - size
    ticks = sorted(change)
    return Timeline(tuple(ticks), tuple(accumulate(map(change.__getitem__, ticks))))


def categorise(trace: Trace, shared: Communication) -> tuple[Category, ...]:
    """The category of each storage, by its number.

    Where the script says what a storage is (`Role`), that decides. Others are classified by the op
    that allocates them and the ops that read them. What a forward pass still holds when the run
    ends before a backward pass, or runs out of memory within it, counts as activations.
    """
    if trace.measured is not None:
        return tuple(
            Category.UNKNOWN if storage.role is None else CATEGORY_OF_ROLE[storage.role]
            for storage in trace.storages
        )
    forward = _ops_of(trace, *FORWARD_PHASES, Phase.EVALUATION)
    backward = _ops_of(trace, Phase.BACKWARD)
    recompute = _ops_of(trace, Phase.RECOMPUTE)
    makers = forward | recompute
    read = set(chain.from_iterable(op.inputs for op in trace.ops))
    read_in_backward = set(chain.from_iterable(op.inputs for op in backward.values()))
    # What a checkpoint keeps (a region's input) may be read by the recomputation alone.
    read_again = set(chain.from_iterable(op.inputs for op in recompute.values()))
    unfinished = max([*trace.step_ends[-1:], *(clock + 1 for clock in [*backward][-1:]), 0])
    refused = trace.final_refusal
    refused_tick = trace.end if refused is None else refused.tick
    refused_step = max(trace.step_ends, default=0) if refused is not None else unfinished
    # An input is what the script itself allocates, outside of any module.
    outside = {
        number
        for number, site in enumerate(trace.sites)
        if not site.module and not site.module_class
    }
    # Looking up an enum's member runs Python code; this runs once for every storage.
    activations, inputs, temporaries = Category.ACTIVATIONS, Category.INPUTS, Category.TEMPORARIES
    gathered_parameters = Category.GATHERED_PARAMETERS
    gathered, buffers = shared.gathered, shared.buffers

    def category(storage: Storage) -> Category:
        if storage.role is not None:
            return CATEGORY_OF_ROLE[storage.role]
        number, born = storage.number, storage.born
        if number in gathered:
            return gathered_parameters
        rest = Category.COMMUNICATION_BUFFERS if number in buffers else temporaries
        op = makers.get(born)
        if op is None:
            return rest
        if number in read and born in forward and op.site in outside and _reads_host_only(op):
            return inputs
        is_kept = (
            number in read_in_backward
            or (number in read_again and born in forward)
            or (born >= refused_step and (storage.died is None or storage.died > refused_tick))
        )
        return activations if is_kept else rest

    return tuple(map(category, trace.storages))


def _ops_of(trace: Trace, *phases: Phase) -> dict[int, Op]:
    # By id: an enum's `__hash__` runs Python code, once for every operator.
    ids = frozenset(map(id, phases))
    return {op.clock: op for op in trace.ops if id(op.phase) in ids}


def _reads_host_only(op: Op) -> bool:
    """A host-to-device copy or a factory."""
    return max(op.inputs, default=-1) < 0

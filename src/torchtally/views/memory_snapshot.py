"""A run's memory in the words of `torch.cuda.memory._snapshot()`, as if the run had recorded it.

Every allocation and free is played through the model of the allocator once more, so addresses,
splits, segments and bytes are those of the run. Frames are the user's lines, below them the module
and the operator; times are predicted. Keys and rules are those of
torch/csrc/cuda/memory_snapshot.cpp and of the viewer at pytorch.org/memory_viz
(torch/utils/viz/MemoryViz.js).
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from torchtally.chips import find_chip
from torchtally.ledger import Entry, Ledger
from torchtally.ledger.steps import Period
from torchtally.memory import Category, Memory
from torchtally.memory import replay as memory_of
from torchtally.memory.allocator import (
    AllocatorSettings,
    Block,
    CachingAllocator,
    OutOfMemoryError,
    Player,
    segment_record,
    settings_record,
)
from torchtally.memory.allocator.replay import NEVER
from torchtally.memory.occupancy import devices
from torchtally.timing.slots import Slot
from torchtally.trace import Trace
from torchtally.views.summary import room_bytes

Record = dict[str, Any]
Frames = list[Record]
"""One object wherever the stack is the same: a pickle stores it once, and 5 bytes each time."""


@dataclass(frozen=True, slots=True)
class MemorySnapshotRecord:
    """The document of one rank."""

    document: Record
    disagreements: tuple[str, ...]
    """Sentences: where it is not what the run had."""


def memory_snapshot(ledger: Ledger, period: Period | None = None) -> MemorySnapshotRecord:
    """The history of every device of a rank in a period, and what each holds at the end of it.

    None for the whole run.
    """
    if period is not None and period.first == 0 and period.end >= ledger.trace.end:
        period = None  # with what was freed after the last operator
    clock = Clock(ledger)
    histories = [history_of(ledger, name, period, clock) for name in devices(ledger.trace)]
    count = max((history.device for history in histories), default=0) + 1
    traces: list[list[Record]] = [[] for _ in range(count)]
    for history in histories:
        traces[history.device] = history.entries
    settings = AllocatorSettings.parse(ledger.trace.allocator_settings)
    document = {
        "segments": [segment for history in histories for segment in history.segments],
        "device_traces": traces,
        "allocator_settings": settings_record(settings),
        "external_annotations": [],
        "torchtally": {
            "script": ledger.trace.script,
            "chip": ledger.trace.chip,
            "period": "the whole run" if period is None else period.name,
            "times": times_of(ledger),
        },
    }
    return MemorySnapshotRecord(
        document, tuple(text for history in histories for text in history.disagreements())
    )


def times_of(ledger: Ledger) -> str:
    """How the times of the document came about."""
    if not ledger.is_timed:
        return "unknown: one us for each operator"
    return "measured" if ledger.is_measured else "predicted"


class Clock:
    """When operators run, one after the other: what each takes of the step, added up."""

    def __init__(self, ledger: Ledger) -> None:
        entries = list(ledger.kernels(ledger.entries))
        self.entries = entries
        self.ticks = [entry.op.clock for entry in entries]
        slots: list[Slot] = [ledger.slot(entry) for entry in entries]
        each_s = [slot.seconds if ledger.is_timed else 1e-6 for slot in slots]
        self.starts_s = list(accumulate(each_s, initial=0.0))

    def microsecond(self, tick: int) -> int:
        return round(self.starts_s[bisect_left(self.ticks, tick)] * 1e6)

    def entry(self, tick: int) -> Entry | None:
        """The operator of a tick; None where the run ended before it came."""
        place = bisect_left(self.ticks, tick)
        return self.entries[place] if self.ticks[place : place + 1] == [tick] else None


@dataclass(slots=True)
class DeviceHistory:
    """What the allocator of one device does, event by event."""

    trace: Trace
    memory: Memory
    player: Player
    clock: Clock
    first: int
    """The tick from which on events are kept."""
    entries: list[Record] = field(default_factory=list)
    segments: list[Record] = field(default_factory=list)
    differing: "list[Differing]" = field(default_factory=list)
    _categories: dict[int, Category] = field(default_factory=dict)
    """By the storage's number."""
    _frames: dict[tuple[int, str, str], Frames] = field(default_factory=dict)
    _lines: dict[tuple[str, int, str], Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pairs = zip(self.memory.storages, self.memory.categories, strict=True)
        self._categories = {storage.number: category for storage, category in pairs}
        self.player.allocator.happened = self.happened

    @property
    def device(self) -> int:
        """Its number."""
        return int(self.memory.device.partition(":")[2] or 0)

    def happened(
        self, action: str, address: int, size: int, stream: int, block: Block | None
    ) -> None:
        """The allocator's listener: one entry of the trace."""
        tick, storage = self.player.tick, self.player.storage
        entry = self.clock.entry(tick)
        frames = self.frames_of(entry)
        if action == "alloc" and block is not None:
            block.frames = tuple(frames)
        if tick < self.first:
            return
        category = (
            self._categories[storage.number]
            if storage is not None and not action.startswith("segment")
            else Category.UNKNOWN
        )
        self.entries.append(
            {
                "action": action,
                "device_free" if action == "oom" else "addr": address,
                "size": size,
                "stream": stream,
                "time_us": self.clock.microsecond(tick),
                "frames": frames,
                "category": str(category),
                "user_metadata": "" if entry is None else str(entry.op.phase),
            }
        )

    def frames_of(self, entry: Entry | None) -> Frames:
        """Innermost first: the operator in its phase, its module, the lines that led to it."""
        if entry is None:
            return []
        key = (entry.op.site, entry.call.name, str(entry.op.phase))
        if key not in self._frames:
            self._frames[key] = list(self._rows(entry))
        return self._frames[key]

    def _rows(self, entry: Entry) -> Iterator[Record]:
        site = entry.site
        yield self._line(entry.call.name, 0, str(entry.op.phase))
        if site.module or site.module_class:
            yield self._line(site.module or "(the model)", 0, site.module_class)
        for frame in site.frames:
            yield self._line(frame.file, frame.line, frame.function)

    def _line(self, file: str, line: int, name: str) -> Record:
        return self._lines.setdefault(
            (file, line, name), {"filename": file, "line": line, "name": name}
        )

    def play_to(self, end: int) -> None:
        """All before this tick. What is held after each is compared with the run's."""
        timeline, allocator = self.memory.timeline, self.player.allocator
        reserved = {
            each.tick: each.bytes
            for each in self.trace.reserved
            if each.device == self.memory.device
        }
        allocated = dict(zip(timeline.ticks, timeline.live_bytes, strict=True))
        reserved_bytes = allocated_bytes = 0
        for tick in sorted({*self.player.ticks, *reserved, *allocated}):
            if tick >= end:
                break
            self.player.play_to(tick + 1)
            reserved_bytes = reserved.get(tick, reserved_bytes)
            allocated_bytes = allocated.get(tick, allocated_bytes)
            if (allocator.reserved_bytes, allocator.allocated_bytes) != (
                reserved_bytes,
                allocated_bytes,
            ):
                self.differing.append(
                    Differing(tick, allocator.reserved_bytes, reserved_bytes,
                              allocator.allocated_bytes, allocated_bytes)
                )  # fmt: skip
        self.segments = [segment_record(blocks, self.device) for blocks in allocator.segments()]
        self.entries.append(self._end(end))

    def _end(self, end: int) -> Record:
        """The last entry, as torch has one. Viewers need one that is of no category."""
        return {
            "action": "snapshot",
            "addr": 0,
            "size": 0,
            "stream": 0,
            "time_us": self.clock.microsecond(end),
            "frames": [],
            "category": str(Category.UNKNOWN),
        }

    def disagreements(self) -> Iterator[str]:
        """A sentence where bytes are not those of the run."""
        if self.differing:
            first = self.differing[0]
            yield (
                f"on {self.memory.device}, {len(self.differing)} moments are not those of the "
                f"run, the first at operator {first.tick}: {first.reserved_bytes} bytes reserved "
                f"({first.runs_reserved_bytes} in the run), {first.allocated_bytes} allocated "
                f"({first.runs_allocated_bytes}). Blocks that several streams use, and settings "
                "changed while the script ran, are not played as they were."
            )


class Differing(NamedTuple):
    """A moment at which the allocator, played again, does not hold what it held in the run."""

    tick: int
    reserved_bytes: int
    runs_reserved_bytes: int
    allocated_bytes: int
    runs_allocated_bytes: int


def history_of(ledger: Ledger, device: str, period: Period | None, clock: Clock) -> DeviceHistory:
    """History of a device without an end of its memory, or of the chip's: whichever is as the run
    was.
    """
    endless = play(ledger, device, period, clock, None)
    assert endless is not None, "an endless device refuses nothing"
    chip = find_chip(ledger.trace.chip)
    if chip is None or not (endless.differing or ledger.trace.refusals):
        return endless
    limited = play(ledger, device, period, clock, room_bytes(chip))
    if limited is None or len(limited.differing) > len(endless.differing):
        return endless
    return limited


def play(
    ledger: Ledger, device: str, period: Period | None, clock: Clock, capacity_bytes: int | None
) -> DeviceHistory | None:
    """None where a request of the run does not fit into the capacity: the run had no such limit."""
    settings = AllocatorSettings.parse(ledger.trace.allocator_settings)
    allocator = CachingAllocator(settings, capacity_bytes=capacity_bytes)
    player = Player(ledger.trace, device, allocator, has_refusals=capacity_bytes is not None)
    first, end = (0, NEVER) if period is None else (period.first, period.end)
    history = DeviceHistory(ledger.trace, memory_of(ledger.trace, device), player, clock, first)
    try:
        history.play_to(end)
    except OutOfMemoryError:
        return None
    return history

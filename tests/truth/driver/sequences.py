"""Sequences of allocations: like training, at every threshold, and random from fixed seeds."""

import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

Event = list[Any]


class Case(NamedTuple):
    """One run of the allocator: its settings, its device's memory, and what is asked of it."""

    name: str
    settings: str
    capacity_bytes: int
    events: list[Event]


class Tape:
    """Writes events down and numbers the allocations."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.number = 0

    def alloc(self, size: int, stream: int = 0) -> int:
        """Take memory; the answer is the allocation's number."""
        self.number += 1
        self.events.append(["alloc", self.number, size, stream])
        return self.number

    def free(self, *numbers: int) -> None:
        """Give memory back."""
        self.events += [["free", number] for number in numbers]

    def say(self, *event: Any) -> None:
        """Any other event."""
        self.events.append(list(event))


EDGES = [
    *(1, 511, 512, 513, 1023, 1024, 1025, 4096),
    *(256 * KIB, MIB - 513, MIB - 512, MIB - 511, MIB - 1, MIB, MIB + 1, MIB + 512),
    *(2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 4 * MIB, 5 * MIB + 7),
    *(10 * MIB - 513, 10 * MIB - 512, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1),
    *(12 * MIB, 12 * MIB + 1, 19 * MIB, 20 * MIB - 1, 20 * MIB, 20 * MIB + 1),
    *(31 * MIB, 32 * MIB - 1, 32 * MIB, 32 * MIB + 1, 50 * MIB, 127 * MIB, 128 * MIB + 1),
    *(200 * MIB, 511 * MIB, 512 * MIB, 600 * MIB),
]


def edges() -> list[Event]:
    """Every size where a rule changes: up, every second one back, up again, down."""
    tape = Tape()
    held = [tape.alloc(size) for size in EDGES]
    tape.free(*held[::2])
    tape.say("reset_peak")
    again = [tape.alloc(size) for size in EDGES[::2]]
    tape.free(*held[1::2])
    less = [tape.alloc(max(1, size - 512)) for size in EDGES]
    tape.say("empty_cache")
    tape.free(*again)
    tape.free(*reversed(less))
    most = [tape.alloc(size) for size in reversed(EDGES)]
    tape.free(*most[: len(most) // 2])
    tape.say("empty_cache")
    return tape.events


def leftovers() -> list[Event]:
    """Blocks cut from segments, and what remains at the limits below which nothing is cut."""
    tape = Tape()
    for size in (19 * MIB, 19 * MIB + 512, 19 * MIB - 512, 18 * MIB, 9 * MIB, 20 * MIB - 512):
        segment = tape.alloc(20 * MIB)
        tape.free(segment)
        first = tape.alloc(size)
        rest = tape.alloc(20 * MIB - size if size < 19 * MIB else 512 * KIB)
        tape.free(first, rest)
    tape.say("empty_cache")
    small = [tape.alloc(MIB - 512 * index) for index in range(8)]
    tape.free(*small[::2])
    small = small[1::2] + [tape.alloc(512 * (index + 1)) for index in range(12)]
    tape.free(*small[::3])
    large = [tape.alloc(size * MIB) for size in (3, 5, 7, 9, 4, 6, 8, 2, 11, 13)]
    tape.free(*large[1::3])
    large = [n for index, n in enumerate(large) if index % 3 != 1]
    large += [tape.alloc(size * MIB + 1) for size in (3, 5, 6, 1, 2, 12)]
    tape.free(*large[::2])
    for size in (33, 47, 64, 100, 150, 300, 520):
        block = tape.alloc(size * MIB)
        tape.free(block)
        part = tape.alloc((size - 1) * MIB)
        other = tape.alloc(max(2, size - 21) * MIB)
        tape.free(part, other)
    tape.say("empty_cache")
    return tape.events


def training(width: int, layers: int, batch: int, steps: int, scale: float = 1.0) -> list[Event]:
    """Parameters stay, activations grow and shrink, gradients live until the next step."""
    tape = Tape()
    shapes = [(4 * width * width, 4 * width), (4 * width * 4 * width, width)] * layers
    for weight, bias in shapes:
        tape.alloc(4 * weight)
        tape.alloc(4 * bias)
    gradients: list[int] = []
    for step in range(steps):
        rows = int(batch * scale**step)
        inputs = tape.alloc(8 * rows)
        saved = []
        for weight, _ in shapes:
            cast = tape.alloc(2 * weight)
            out = tape.alloc(2 * rows * weight // width)
            mask = tape.alloc(rows * width)
            tape.free(cast)
            saved += [out, mask]
        loss = tape.alloc(4)
        tape.free(*gradients)
        gradients = []
        flow = tape.alloc(2 * rows * width)
        for weight, bias in reversed(shapes):
            workspace = tape.alloc(2 * rows * width + 512)
            following = tape.alloc(2 * rows * width)
            gradients += [tape.alloc(4 * weight), tape.alloc(4 * bias)]
            tape.free(flow, workspace, saved.pop(), saved.pop())
            flow = following
        tape.free(flow, loss, inputs)
        if step == 0:
            for weight, bias in shapes:
                for size in (weight, weight, bias, bias):
                    tape.alloc(4 * size)
        tape.say("reset_peak")
        temporaries = [tape.alloc(4 * weight) for weight, _ in shapes]
        tape.free(*temporaries)
    return tape.events


def growing(count: int, first: int, factor: float) -> list[Event]:
    """Each longer than the last, freed one later: what a growing sequence does to the cache."""
    tape = Tape()
    held: list[int] = []
    size = float(first)
    for index in range(count):
        held.append(tape.alloc(int(size)))
        if index % 5 == 4:
            tape.alloc(3 * KIB)
        if len(held) > 2:
            tape.free(held.pop(0))
        size *= factor
    tape.free(*held)
    return tape.events


def wandering(
    seed: int,
    count: int,
    live: int,
    streams: int = 1,
    least: int = 1,
    most: int = 200 * MIB,
    shared: float = 0.0,
) -> list[Event]:
    """Sizes log-uniform, up to about `live` bytes held at a time, from one seed."""
    source = random.Random(seed)
    tape = Tape()
    held: list[tuple[int, int]] = []
    total = 0
    while len(tape.events) < count:
        chance = source.random()
        if chance < 0.005:
            tape.say("empty_cache")
        elif chance < 0.02:
            tape.say("reset_peak")
        elif held and (total > live or source.random() < 0.35):
            number, size = held.pop(source.randrange(len(held)))
            if streams > 1 and source.random() < shared:
                tape.say("record_stream", number, source.randrange(streams))
            tape.free(number)
            total -= size
        else:
            size = int(math.exp(source.uniform(math.log(least), math.log(most))))
            held.append((tape.alloc(size, source.randrange(streams)), size))
            total += size
    return tape.events


def crowded(seed: int, count: int, capacity: int) -> list[Event]:
    """Large blocks around the device's whole memory: retries and failures."""
    source = random.Random(seed)
    tape = Tape()
    held: list[int] = []
    while len(tape.events) < count:
        if len(held) > 3 and source.random() < 0.45:
            tape.free(held.pop(source.randrange(len(held))))
        else:
            size = int(math.exp(source.uniform(math.log(100 * KIB), math.log(capacity / 3))))
            held.append(tape.alloc(size))
    return tape.events


GC = "garbage_collection_threshold:0.6"
EXPANDABLE = "expandable_segments:True"


def cases() -> list[Case]:
    """All of them."""
    cases_listed: list[Case] = []
    whole = 85_029_027_840

    def case(settings: str, name: str, events: list[Event], capacity: int = whole) -> None:
        cases_listed.append(Case(f"{name} {settings or 'default'}", settings, capacity, events))

    shaped: dict[str, Callable[[], list[Event]]] = {
        "edges": edges,
        "leftovers": leftovers,
        "training": lambda: training(768, 3, 8192, 3),
    }
    for settings in ("", "max_split_size_mb:32", EXPANDABLE, "roundup_power2_divisions:4"):
        for name, events in shaped.items():
            case(settings, name, events())
    case("", "training-varying", training(512, 2, 10_000, 5, 1.13))
    case("max_split_size_mb:128", "training-varying", training(512, 2, 40_000, 5, 1.13))
    case(EXPANDABLE, "training-varying", training(512, 2, 10_000, 5, 1.13))
    case("", "growing", growing(90, 300 * KIB, 1.07))
    case("", "wandering-1", wandering(1, 400, GIB))
    case("", "wandering-2-streams", wandering(2, 400, GIB, 3, shared=0.3))
    case("max_split_size_mb:32", "wandering-3", wandering(3, 350, GIB))
    case("max_split_size_mb:128", "wandering-4", wandering(4, 350, 2 * GIB, most=700 * MIB))
    case("max_split_size_mb:512", "wandering-5", wandering(5, 300, 6 * GIB, most=3 * GIB))
    case(
        "max_split_size_mb:64,max_non_split_rounding_mb:100",
        "wandering-6",
        wandering(6, 300, 2 * GIB, most=700 * MIB),
    )
    divisions = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"
    case(divisions, "edges", edges())
    case(divisions, "wandering-7", wandering(7, 300, 6 * GIB, most=3 * GIB))
    case(EXPANDABLE, "wandering-8", wandering(8, 400, GIB))
    case(EXPANDABLE, "wandering-9-streams", wandering(9, 400, GIB, 3, shared=0.3))
    case(EXPANDABLE, "growing", growing(90, 300 * KIB, 1.07))
    case("large_segment_size_mb:64", "edges", edges())
    case("large_segment_size_mb:64", "wandering-10", wandering(10, 300, GIB))
    case(f"{EXPANDABLE},large_segment_size_mb:64", "wandering-10", wandering(10, 300, GIB))
    combined = "max_split_size_mb:128,roundup_power2_divisions:8,expandable_segments:True"
    case(combined, "wandering-11", wandering(11, 300, 2 * GIB, most=400 * MIB))

    for settings in ("", "max_split_size_mb:32", EXPANDABLE):
        case(settings, "crowded-12", crowded(12, 200, GIB), GIB)
        tight = wandering(13, 250, 850 * MIB, least=200 * KIB)
        case(settings, "wandering-13-tight", tight, GIB)
    tight = wandering(14, 250, 850 * MIB, 2, 200 * KIB, shared=0.2)
    case("", "wandering-14-tight-streams", tight, GIB)
    case("max_split_size_mb:64", "wandering-14-tight-streams", tight, GIB)
    case(EXPANDABLE, "wandering-14-tight-streams", tight, GIB)
    fraction: list[Event] = [["fraction", 0.5]]
    full = wandering(15, 250, 700 * MIB, least=100 * KIB, most=100 * MIB)
    for settings in (GC, f"{GC},max_split_size_mb:32", f"{GC},{EXPANDABLE}"):
        case(settings, "fraction-15", fraction + full, 2 * GIB)
    case(GC, "no-fraction-15", full, 2 * GIB)
    smaller = training(512, 2, 10_000, 4, 1.13)
    case(f"{GC},max_split_size_mb:64", "fraction-training", fraction + smaller, 2 * GIB)
    case(GC, "fraction-training", fraction + smaller, 2 * GIB)
    case("", "fraction-16", fraction + crowded(16, 200, GIB), 2 * GIB)
    option = "per_process_memory_fraction:0.5"
    case(option, "crowded-16", crowded(16, 200, GIB), 2 * GIB)
    case(f"{option},{GC}", "wandering-15", full, 2 * GIB)
    return cases_listed

"""A period as tracks over time: what each stream and communicator of every rank does when.

Unlike a table, a track says in which order things happen, and beside what. Times are whole
nanoseconds from the beginning of the period, so that slices which follow one another touch and
never overlap.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from torchtally.errors import UsageError
from torchtally.ledger import Entry, Ledger
from torchtally.ledger.spans import spans_of
from torchtally.memory.occupancy import Timeline
from torchtally.timing.moments import Moment, moments
from torchtally.timing.ranks import Span
from torchtally.trace import HOST, Phase, Trace
from torchtally.trace.ranks import COMMUNICATORS
from torchtally.views.code_slices import CodeLevels, code_slices
from torchtally.views.peak import title_of
from torchtally.views.slices import Slice, Stretch, details_of, fold, in_lanes, stretches
from torchtally.work import Kind


@dataclass(frozen=True, slots=True)
class Track:
    """Slices that follow one another, by time."""

    name: str
    slices: tuple[Slice, ...]
    stream: int | None = None
    """As in the trace; None where it is not one stream's."""


class Lane(NamedTuple):
    """Operators of a stream that follow one another. A stream that sends and receives at once has
    several.
    """

    name: str
    stream: int
    stretches: list[Stretch]


class HeldOverTime(NamedTuple):
    """A quantity of memory over time."""

    name: str
    points: tuple[tuple[int, int], ...]
    """(nanosecond, bytes that are held from then on)."""


class Arrow(NamedTuple):
    """Arrow from a collective to an operator that waits for it: tracks by number, nanoseconds in
    them.
    """

    from_track: int
    from_ns: int
    to_track: int
    to_ns: int


@dataclass(frozen=True, slots=True)
class RankTracks:
    """What one rank does. Evaluation that is timed by itself stands by itself, too."""

    rank: int
    name: str
    tracks: tuple[Track, ...]
    arrows: tuple[Arrow, ...]
    code: tuple[Track, ...]
    """Of each stream that computes: phases, the modules in them, and the lines in those. Slices lie
    within one another, the outer one first."""
    held: tuple[HeldOverTime, ...]
    """Allocated, reserved, and what is held for each purpose."""


@dataclass(frozen=True, slots=True)
class Clocked:
    """Operators of a rank that are timed together."""

    ledger: Ledger
    reported: Sequence[Entry]
    spans: Sequence[Span]
    """Of every entry of the ledger."""
    moments: Sequence[Moment]
    """Of the reported ones, by time; their places are numbers of entries."""
    is_apart: bool
    """Evaluation, timed as if there was nothing else."""

    @property
    def begins_s(self) -> float:
        return min((moment.start_s for moment in self.moments), default=0.0)


def tracks_of(ledger: Ledger, *, is_folded: bool = False) -> tuple[RankTracks, ...]:
    """Tracks of each rank that ran, by number; `is_folded`: operators that follow one another and
    are of one line and phase as one slice.

    Raises UsageError for a ledger without times.
    """
    if ledger.roofline is None:
        raise UsageError(
            f"{ledger.trace.chip or ledger.trace.script}: times are unknown, so there is no "
            "timeline. Name a chip of known speed: --gpu H100-SXM."
        )
    return tuple(
        rank_tracks(part, begins_s, is_folded=is_folded) for part, begins_s in timed_parts(ledger)
    )


def timed_parts(ledger: Ledger) -> Iterator[tuple[Clocked, float]]:
    """What is timed together of each rank, by number, and when all of its like begin."""
    ranks = sorted((ledger, *ledger.others), key=lambda each: each.trace.world.rank)
    parts = [part for each in ranks for part in clocks(each)]
    begins_s = {
        is_apart: min((part.begins_s for part in parts if part.is_apart is is_apart), default=0.0)
        for is_apart in (False, True)
    }
    return ((part, begins_s[part.is_apart]) for part in parts)


def clocks(ledger: Ledger) -> Iterator[Clocked]:
    """A rank's operators; training and evaluation apart where they are timed so."""
    evaluation, network, spans = Phase.EVALUATION, Kind.COMMUNICATION, spans_of(ledger)
    apart = ledger.times.is_evaluation_apart
    for chosen in ((False,), (True,)) if apart else ((False, True),):
        entries, reported = (
            [each for each in ledger.kernels(all_of) if (each.op.phase is evaluation) in chosen]
            for all_of in (ledger.entries, ledger.reported)
        )
        if not reported:
            continue
        numbers = {entry.number for entry in reported}
        all_moments = moments(
            [spans[entry.number] for entry in entries], [entry.kind is network for entry in entries]
        )
        numbered = (each._replace(place=entries[each.place].number) for each in all_moments)
        own = sorted(
            (moment for moment in numbered if moment.place in numbers),
            key=lambda moment: moment.start_s,
        )
        yield Clocked(ledger, reported, spans, own, chosen == (True,))


def rank_tracks(part: Clocked, begins_s: float, *, is_folded: bool) -> RankTracks:
    """Tracks, arrows and memory, in nanoseconds since `begins_s`."""
    ledger = part.ledger
    trace, rank = ledger.trace, ledger.trace.world.rank
    tracks = [] if _is_host(ledger) else [Track("step", _occupations(part, begins_s))]
    places: dict[int, tuple[int, Slice]] = {}
    details = details_of(ledger, part.reported)
    code: list[Track] = []
    levels = CodeLevels(ledger)
    for lane in lanes_of(part, begins_s):
        if lane.stream < COMMUNICATORS:
            name = f"{lane.name}: modules and lines"
            code.append(Track(name, tuple(code_slices(lane.stretches, levels)), lane.stream))
        slices: list[Slice] = []
        for stretch in fold(lane.stretches) if is_folded else lane.stretches:
            slices += stretch.slices(details)
            places |= {entry.number: (len(tracks), slices[-1]) for entry in stretch.entries}
        tracks.append(Track(lane.name, tuple(slices), lane.stream))
    return RankTracks(
        rank=rank,
        name=name_of(part),
        tracks=tuple(tracks),
        arrows=tuple(_arrows(trace, part.reported, places)),
        code=tuple(code),
        held=tuple(_held_bytes(part, begins_s)),
    )


def name_of(part: Clocked) -> str:
    """Its rank, or its chip in a run of one GPU."""
    world = part.ledger.trace.world
    name = f"rank {world.rank}" if world.size > 1 else part.ledger.trace.chip
    return f"{name}, evaluation by itself" if part.is_apart else name


def lanes_of(part: Clocked, begins_s: float) -> Iterator[Lane]:
    """Lanes of each stream and communicator, by number."""
    trace = part.ledger.trace
    by_stream: dict[int, list[Stretch]] = {}
    for stretch in stretches(trace, part.reported, part.spans, begins_s):
        by_stream.setdefault(stretch.entries[0].op.stream, []).append(stretch)
    for stream in sorted(by_stream):
        for number, lane in enumerate(in_lanes(by_stream[stream])):
            name = stream_name(trace, stream) + (f" ({number + 1})" if number else "")
            yield Lane(name, stream, lane)


def _is_host(ledger: Ledger) -> bool:
    return ledger.roofline is not None and ledger.roofline.is_host


def stream_name(trace: Trace, stream: int) -> str:
    """Name like "stream 7"; a communicator's group, and the rank that it joins this one with."""
    kind, number = divmod(stream, COMMUNICATORS)
    if not kind:
        return f"stream {stream}"
    if number >= len(trace.groups):
        return f"communicator {number}"
    group = trace.groups[number]
    name = f"{group.description or group.name} of {len(group.ranks)}"
    peer = kind - 2
    return f"{name}, with rank {group.ranks[peer]}" if 0 <= peer < len(group.ranks) else name


def _occupations(part: Clocked, begins_s: float) -> tuple[Slice, ...]:
    """What each moment of the step goes into; neighbours of one kind are one slice."""
    slices: list[Slice] = []
    for moment in part.moments:
        start_ns, end_ns = in_ns(moment.start_s - begins_s), in_ns(moment.end_s - begins_s)
        name = str(moment.occupation)
        if slices and slices[-1].name == name and slices[-1].end_ns == start_ns:
            slices[-1] = slices[-1]._replace(end_ns=end_ns)
        elif end_ns > start_ns:
            slices.append(Slice(name, start_ns, end_ns))
    return tuple(slices)


def _arrows(
    trace: Trace, reported: Iterable[Entry], places: dict[int, tuple[int, Slice]]
) -> Iterator[Arrow]:
    """Arrows for every wait for a collective: to the operator before which it was."""
    drawn = [entry for entry in reported if entry.number in places]
    by_stream: dict[int, list[Entry]] = {HOST: drawn}
    for entry in drawn:
        by_stream.setdefault(entry.op.stream, []).append(entry)

    def first_from(stream: int, tick: int) -> tuple[list[Entry], int]:
        entries = by_stream.get(stream, [])
        return entries, bisect_left(entries, tick, key=lambda entry: entry.op.clock)

    seen = set()
    for wait in trace.stream_waits:
        awaited, end = first_from(wait.other, wait.until)
        waiting, place = first_from(wait.stream, wait.tick)
        if not end or place == len(waiting) or awaited[end - 1].kind is not Kind.COMMUNICATION:
            continue
        (source, before), (target, after) = (
            places[entry.number] for entry in (awaited[end - 1], waiting[place])
        )
        arrow = Arrow(source, (before.start_ns + before.end_ns) // 2, target, after.start_ns)
        if before.end_ns <= after.start_ns and arrow not in seen:
            seen.add(arrow)
            yield arrow


def _held_bytes(part: Clocked, begins_s: float) -> Iterator[HeldOverTime]:
    """Bytes held, at the operators that compute when they change: the allocator follows the host,
    and what it gives an operator is in use once that operator runs.
    """
    network, memory = Kind.COMMUNICATION, part.ledger.memory
    ran = [
        (entry.op.clock, part.spans[entry.number].start_s)
        for entry in part.reported
        if entry.kind is not network and part.ledger.slot(entry).kernel_s > 0
    ]
    if not ran:
        return
    ticks = [tick for tick, _ in ran]
    starts_s = list(accumulate((start_s for _, start_s in ran), max))
    first, end = part.reported[0].op.clock, part.reported[-1].op.clock + 1

    def points(course: Timeline) -> Iterator[tuple[int, int]]:
        changes = course.ticks[bisect_left(course.ticks, first) : bisect_left(course.ticks, end)]
        for tick in dict.fromkeys((first, *changes)):
            place = min(bisect_left(ticks, tick), len(ticks) - 1)
            yield in_ns(starts_s[place] - begins_s), course.at(tick)

    yield HeldOverTime("memory allocated", tuple(points(memory.timeline)))
    reserved = {
        each.tick: each.bytes for each in part.ledger.trace.reserved if each.device == memory.device
    }
    if reserved:
        course = Timeline(tuple(reserved), tuple(reserved.values()))
        yield HeldOverTime("memory reserved", tuple(points(course)))
    for category, course in memory.by_category().items():
        if course.ticks:
            yield HeldOverTime(f"held for {title_of(category)}", tuple(points(course)))


def in_ns(seconds: float) -> int:
    return round(seconds * 1e9)

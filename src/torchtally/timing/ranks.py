"""When operators run on the streams of one rank, or of several that wait for each other.

A stream works its operators off in order. One begins when its stream is free, a little later where
it had queued, the host has issued it, and what its stream waits for is done. A collective, or a
message from one rank to another, is a meeting of the ranks that are timed together: it is under way
when the last of them has come, and what a rank spends there before is waiting. Ranks that are not
timed come in time.

Kernels that compute take the device in turns, whichever stream they are on: one that fills it
leaves no multiprocessor to another (what small ones could share is not modelled). Collectives, and
copies between GPUs, run beside them; a collective's blocks stay on their multiprocessors until it
is done, and move bytes, so that what computes takes longer meanwhile.

Every stream and every host goes on as far as it can, in the order of time. Where none can, the
ranks wait for each other in a circle, or for one that ended: `RankTimes.stuck` says so, and they go
on without it.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torchtally.timing.constants import MOST_TAKEN
from torchtally.timing.launch_queue import LaunchQueue
from torchtally.timing.roofline import Bound, Kernel
from torchtally.trace import HOST, Call, Coalesced, Op, ProcessGroup, StreamWait
from torchtally.trace.peers import MESSAGES, ONE_SIDED


class Span(NamedTuple):
    """When an operator runs, in seconds since the run began."""

    start_s: float
    end_s: float
    waiting_s: float = 0.0
    """At its beginning, for other ranks."""


@dataclass(frozen=True, slots=True)
class RankRun:
    """What one rank runs."""

    ops: Sequence[Op]
    issued: Sequence[float]
    """Seconds the host takes to issue each."""
    kernels: Sequence[Kernel]
    gaps_s: Sequence[float]
    """What passes before each, where it queues."""
    queued: Sequence[int]
    """Launches of each that take a place in its stream's queue."""
    waits: Sequence[int]
    """Ticks before which the host waits for the device."""
    stream_waits: Sequence[StreamWait] = ()
    coalesced: Sequence[Coalesced] = ()
    rank: int = 0
    calls: Sequence[Call] = ()
    groups: Sequence[ProcessGroup] = ()


@dataclass(slots=True)
class Meeting:
    """A collective or a message, of those of its ranks that are timed."""

    ranks: frozenset[int]
    came_s: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0
    is_over: bool = False

    @property
    def starts_s(self) -> float:
        return max(self.came_s.values())

    @property
    def end_s(self) -> float:
        return self.starts_s + self.seconds

    def come(self, rank: int, at_s: float, seconds: float) -> None:
        self.came_s[rank] = at_s
        self.seconds = max(self.seconds, seconds)
        self.is_over = len(self.came_s) == len(self.ranks)


Key = tuple[object, ...]


CROWDED: dict[Bound, Callable[[Kernel], float]] = {
    Bound.COMPUTE: lambda kernel: kernel.multiprocessor_share,
    Bound.MEMORY: lambda kernel: kernel.bandwidth_share,
}
"""What a kernel of this bound shares with the collectives beside it."""


class Meetings:
    """Which operators of several ranks are one collective or one message."""

    def __init__(self, ranks: frozenset[int]) -> None:
        self.ranks = ranks
        self._meetings: dict[Key, Meeting] = {}

    def of(self, run: RankRun) -> dict[int, Meeting]:
        """Meetings by index of the rank's operators; none of what it does with ranks that are not
        timed.
        """
        meetings: dict[int, Meeting] = {}
        if len(self.ranks) == 1:
            return meetings
        counts: Counter[Key] = Counter()
        for place, op in enumerate(run.ops):
            who = self._who(run.calls[op.call], run)
            if who is None:
                continue
            key, members = who
            common = members & self.ranks
            counts[key] += 1
            if len(common) > 1:
                numbered = (*key, counts[key])
                meetings[place] = self._meetings.setdefault(numbered, Meeting(common))
        return meetings

    def _who(self, call: Call, run: RankRun) -> tuple[Key, frozenset[int]] | None:
        """(what is the same for all that take part, their ranks in the world)."""
        number = call.literal("group")
        if not isinstance(number, int) or isinstance(number, bool) or number >= len(run.groups):
            return None
        if call.name in ONE_SIDED:
            return None
        group = run.groups[number]
        argument = MESSAGES.get(call.name)
        if argument is None:
            return (group.name, group.ranks), frozenset(group.ranks)
        place = call.literal(argument)
        if not isinstance(place, int) or place >= len(group.ranks):
            return None
        peer = group.ranks[place]
        ends = (run.rank, peer) if argument == "dst" else (peer, run.rank)
        return (group.name, group.ranks, *ends), frozenset(ends)


class Turn(NamedTuple):
    """What a stream could run next."""

    start_s: float
    computes: bool
    ready_s: float
    """From when on it waits for the device alone."""
    stream: "RankStream"

    def order(self) -> tuple[float, bool, float]:
        """Order at the same moment: a collective is first, which takes multiprocessors from the
        others; of kernels that compute, the one that has waited longest.
        """
        return self.start_s, self.computes, self.ready_s


class RankStream:
    """How far one stream is."""

    def __init__(self, played: "Playing") -> None:
        self.played = played
        self.items: list[int | StreamWait] = []
        """Places of operators, and waits for other streams, in order."""
        self.ticks: list[int] = []
        """Of its operators."""
        self.ends_s: list[float] = []
        """Of those that have a known end: when all up to it are done."""
        self.next = 0
        self.done_s = self.ready_s = 0.0
        self.came: list[int] = []
        """Places of operators that have come to a meeting which is not over."""

    def end_before(self, tick: int) -> float | None:
        """When its operators of smaller ticks are done; None where that is not known yet."""
        count = bisect_left(self.ticks, tick)
        if count > len(self.ends_s):
            return None
        return self.ends_s[count - 1] if count else 0.0

    def next_turn(self) -> "Turn | None":
        """When its next operators can begin; None where it has none, or that is not known yet."""
        if self.came:
            return None
        while self.next < len(self.items):
            item = self.items[self.next]
            if not isinstance(item, StreamWait):
                return self._turn(item)
            end_s = self.played.stream(item.other).end_before(item.until)
            if end_s is None:
                return None
            self.ready_s = max(self.ready_s, end_s)
            self.next += 1
        return None

    def _turn(self, place: int) -> "Turn | None":
        played = self.played
        issued_s = played.issued_s[played.together.get(place, (place,))[-1]]
        if issued_s < 0:
            return None
        free_s = self.done_s + played.run.gaps_s[place]
        ready_s = max(issued_s, free_s, self.ready_s)
        computes = played.computes[place]
        start_s = max(ready_s, played.computing_s) if computes else ready_s
        return Turn(start_s, computes, ready_s, self)

    def run(self, start_s: float) -> None:
        """Its next operators, of which all that is to know before they begin is known."""
        played, place = self.played, self.items[self.next]
        assert not isinstance(place, StreamWait), place
        together = played.together.get(place, (place,))
        self.next += len(together)
        for each in together:
            end_s = played.end_s(each, start_s)
            if played.computes[each]:
                played.computing_s = max(played.computing_s, end_s)
            meeting = played.meetings.get(each)
            if meeting is None:
                played.spans[each] = Span(start_s, end_s)
                played.crowd(each, end_s)
            else:
                meeting.come(played.run.rank, start_s, played.seconds[each])
        self.came = list(together)
        self.leave()

    def leave(self) -> bool:
        """Have an end for what has come, once all of it is over; whether there was any."""
        if not self.came:
            return False
        played = self.played
        meetings = [(place, played.meetings.get(place)) for place in self.came]
        if not all(meeting is None or meeting.is_over for _, meeting in meetings):
            return False
        for place, meeting in meetings:
            if meeting is not None:
                came_s = meeting.came_s[played.run.rank]
                waiting_s = meeting.starts_s - came_s
                played.spans[place] = Span(came_s, meeting.end_s, waiting_s)
                played.crowd(place, meeting.end_s)
            span = played.spans[place]
            assert span is not None
            self.done_s = max(self.done_s, span.end_s)
        self.ends_s += [self.done_s] * len(self.came)
        self.came = []
        return True


def operators_that_make_room(run: RankRun) -> dict[int, int]:
    """Operators that must have ended, by the index of the one for which its stream's queue has no
    room: the last one that must have ended before.
    """
    queues: defaultdict[int, LaunchQueue[int]] = defaultdict(LaunchQueue)
    must_end: dict[int, int] = {}
    for place, (op, queued) in enumerate(zip(run.ops, run.queued, strict=True)):
        if queued:
            last = queues[op.stream].make_room(queued)
            if last is not None:
                must_end[place] = last
            queues[op.stream].add(place, queued)
    return must_end


class Playing:
    """A rank that is being timed: its host, and its streams."""

    def __init__(self, run: RankRun, meetings: Mapping[int, Meeting]) -> None:
        self.run, self.meetings = run, meetings
        self.spans: list[Span | None] = [None] * len(run.ops)
        self.seconds = [kernel.seconds for kernel in run.kernels]
        self.issued_s = [-1.0] * len(run.ops)
        """When the host has issued each; negative: not yet."""
        self.together: dict[int, tuple[int, ...]] = {}
        """By the first place of operators that are launched together: all of them."""
        self.host_s = 0.0
        self._crowding: list[tuple[float, Kernel]] = []
        """Collectives that have begun, and until when they go on."""
        self.computing_s = 0.0
        """Until when the device computes what it was given."""
        self.computes = [not kernel.bound.is_link for kernel in run.kernels]
        self.next = 0
        self._streams: dict[int, RankStream] = {}
        self._waits = iter(run.waits)
        self._host_waits = iter([wait for wait in run.stream_waits if wait.stream == HOST])
        self._wait = next(self._waits, NEVER)
        self._host_wait = next(self._host_waits, None)
        self._must_end = operators_that_make_room(run)
        self._fill()

    def crowd(self, place: int, end_s: float) -> None:
        """An operator keeps its shares of the device until then."""
        kernel = self.run.kernels[place]
        if kernel.multiprocessor_share or kernel.bandwidth_share:
            self._crowding.append((end_s, kernel))

    def end_s(self, place: int, start_s: float) -> float:
        """When an operator that begins now is done, beside the collectives that have begun."""
        bound, left_s = self.run.kernels[place].bound, self.seconds[place]
        if bound not in CROWDED or not self._crowding:
            return start_s + left_s
        self._crowding = [each for each in self._crowding if each[0] > start_s]
        self._crowding.sort(key=lambda each: each[0])
        shares = [CROWDED[bound](kernel) for _, kernel in self._crowding]
        for number, (end_s, _) in enumerate(self._crowding):
            rate = 1 - min(MOST_TAKEN, sum(shares[number:]))
            if left_s <= (end_s - start_s) * rate:
                return start_s + left_s / rate
            left_s -= (end_s - start_s) * rate
            start_s = end_s
        return start_s + left_s

    def stream(self, number: int) -> RankStream:
        stream = self._streams.get(number)
        if stream is None:
            stream = self._streams[number] = RankStream(self)
        return stream

    def _fill(self) -> None:
        waits = iter([wait for wait in self.run.stream_waits if wait.stream != HOST])
        wait = next(waits, None)
        for place, op in enumerate(self.run.ops):
            while wait is not None and wait.tick <= op.clock:
                self.stream(wait.stream).items.append(wait)
                wait = next(waits, None)
            if self.seconds[place] > 0:
                stream = self.stream(op.stream)
                stream.items.append(place)
                stream.ticks.append(op.clock)
        if self.run.coalesced:
            self._join()

    def _join(self) -> None:
        """Operators that are launched together share the wire: all end when the last does."""
        clocks = [op.clock for op in self.run.ops]
        for batch in self.run.coalesced:
            places = range(bisect_left(clocks, batch.first), bisect_left(clocks, batch.end))
            joined = tuple(place for place in places if self.seconds[place] > 0)
            if len({self.run.ops[place].stream for place in joined}) != 1:
                continue
            stream = self.stream(self.run.ops[joined[0]].stream)
            at = stream.items.index(joined[0])
            waits = [item for item in stream.items[at:] if isinstance(item, StreamWait)]
            early = [wait for wait in waits if wait.tick < batch.end]
            rest = [item for item in stream.items[at:] if item not in early]
            stream.items[at:] = [*early, *rest]
            self.together[joined[0]] = joined
            by_way: dict[str, float] = defaultdict(float)
            for place in joined:
                by_way[self._name(place)] += self.seconds[place]
            for place in joined:
                self.seconds[place] = by_way[self._name(place)]

    def _name(self, place: int) -> str:
        call = self.run.ops[place].call
        return self.run.calls[call].name if self.run.calls else ""

    def go_on(self) -> bool:
        """The host and the streams, as far as they can; whether they got anywhere."""
        streams = self._streams
        moves = self._issue()
        while True:
            for stream in streams.values():
                moves |= stream.leave()
            turns = [turn for each in [*streams.values()] if (turn := each.next_turn())]
            if not turns:
                return moves
            moves = True
            turn = min(turns, key=Turn.order)
            turn.stream.run(turn.start_s)
            self._issue()

    def _issue(self) -> bool:
        first, ops, issued = self.next, self.run.ops, self.run.issued
        while self.next < len(ops):
            tick = ops[self.next].clock
            while self._wait <= tick:
                ends = [stream.end_before(tick) for stream in self._streams.values()]
                if None in ends:
                    return self.next != first
                self.host_s = max([self.host_s, *(end for end in ends if end is not None)])
                self._wait = next(self._waits, NEVER)
            while self._host_wait is not None and self._host_wait.tick <= tick:
                end = self.stream(self._host_wait.other).end_before(self._host_wait.until)
                if end is None:
                    return self.next != first
                self.host_s = max(self.host_s, end)
                self._host_wait = next(self._host_waits, None)
            must_end = self._must_end.get(self.next)
            if must_end is not None:
                span = self.spans[must_end]
                if span is None:
                    return self.next != first
                self.host_s = max(self.host_s, span.end_s)
            self.host_s += issued[self.next]
            self.issued_s[self.next] = self.host_s
            self.next += 1
        return self.next != first

    def unfinished(self) -> Iterator[Meeting]:
        """Meetings to which the rank has come, and others have not."""
        for stream in self._streams.values():
            for place in stream.came:
                meeting = self.meetings.get(place)
                if meeting is not None and not meeting.is_over:
                    yield meeting


NEVER = 2**63


@dataclass(frozen=True, slots=True)
class RankTimes:
    """The spans of each rank's operators, in the order of the runs."""

    spans: tuple[list[Span], ...]
    stuck: int
    """Meetings to which some rank never came: a real run would hang there."""


def play(runs: Sequence[RankRun]) -> RankTimes:
    """Time ranks together."""
    meetings = Meetings(frozenset(run.rank for run in runs))
    ranks = [Playing(run, meetings.of(run)) for run in runs]
    stuck = 0
    while True:
        moves = [rank.go_on() for rank in ranks]
        if any(moves):
            continue
        blocked = [meeting for rank in ranks for meeting in rank.unfinished()]
        if not blocked:
            break
        for meeting in blocked:
            stuck += not meeting.is_over
            meeting.is_over = True
    return RankTimes(
        tuple([span or Span(0.0, 0.0) for span in rank.spans] for rank in ranks), stuck
    )

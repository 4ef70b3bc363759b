"""When operators run on streams beside each other, and whose part of the step a moment is.

A stream works its operators off in order. One begins when its stream is free, the host has issued
it, and what its stream waits for is done. So a collective can run behind products, and the step is
shorter than the sum of its kernels.

Every moment of the step belongs to one operator: to a kernel that computes, if one runs; else to a
collective, which is *exposed* then; else to the operator that the device idles for. A collective
that runs behind others is charged nothing for that time, and its `kernel_s` is all of it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torchtally.timing.launch_queue import LaunchQueue
from torchtally.timing.ranks import NEVER, RankRun, Span
from torchtally.timing.roofline import Bound
from torchtally.timing.slots import NOTHING, SLEEPING, Slot, share_idle
from torchtally.trace import HOST, Op, StreamWait

ROUNDING_S = 1e-9
"""Of sums of times."""


class StreamQueue:
    """How far one stream is."""

    __slots__ = ("done_s", "ends_s", "launches", "ready_s", "ticks")

    def __init__(self) -> None:
        self.done_s = 0.0
        self.ready_s = 0.0
        """Before that its next operator does not begin: it waits for another stream."""
        self.ticks: list[int] = []
        self.ends_s: list[float] = []
        """When each of its operators has ended, by tick."""
        self.launches = LaunchQueue[float]()
        """With the moments at which operators end."""

    def end_before(self, tick: int) -> float:
        """When its operators of smaller ticks are done."""
        place = bisect_left(self.ticks, tick)
        return self.ends_s[place - 1] if place else 0.0


class DeviceStreams:
    """How far the host and all streams are."""

    def __init__(self) -> None:
        self.host_s = 0.0
        self._streams: dict[int, StreamQueue] = {}

    def stream(self, number: int) -> StreamQueue:
        queue = self._streams.get(number)
        if queue is None:
            queue = self._streams[number] = StreamQueue()
        return queue

    @property
    def device_s(self) -> float:
        """When the device has done all that it was given."""
        return max((stream.done_s for stream in self._streams.values()), default=0.0)

    def wait(self) -> None:
        """The host waits until the device has done all that it was given."""
        self.host_s = max(self.host_s, self.device_s)

    def wait_for(self, wait: StreamWait) -> None:
        """A stream, or the host, waits for what another one had been given."""
        done_s = self.stream(wait.other).end_before(wait.until)
        if wait.stream == HOST:
            self.host_s = max(self.host_s, done_s)
        else:
            waiting = self.stream(wait.stream)
            waiting.ready_s = max(waiting.ready_s, done_s)

    def run(self, op: Op, issue_s: float, kernel_s: float, gap_s: float, queued: int) -> Span:
        """The host issues an operator, and its stream runs it."""
        stream = self.stream(op.stream)
        if queued:
            self.host_s = max(self.host_s, stream.launches.make_room(queued) or 0.0)
        self.host_s += issue_s
        if kernel_s <= 0:
            return Span(stream.done_s, stream.done_s)
        start_s = max(self.host_s, stream.done_s + gap_s, stream.ready_s)
        stream.done_s = start_s + kernel_s
        stream.ticks.append(op.clock)
        stream.ends_s.append(stream.done_s)
        if queued:
            stream.launches.add(stream.done_s, queued)
        return Span(start_s, stream.done_s)


class Covered:
    """A union of intervals, of which every new one begins no earlier than those before it."""

    def __init__(self) -> None:
        self.starts_s: list[float] = []
        self.ends_s: list[float] = []

    def add(self, span: Span) -> float:
        """How much of an interval was in none before it."""
        start_s = max(span.start_s, self.ends_s[-1]) if self.ends_s else span.start_s
        if start_s >= span.end_s:
            return 0.0
        if self.ends_s and start_s == self.ends_s[-1]:
            self.ends_s[-1] = span.end_s
        else:
            self.starts_s.append(start_s)
            self.ends_s.append(span.end_s)
        return span.end_s - start_s

    def gaps(self, start_s: float, end_s: float) -> Iterator[tuple[float, float]]:
        """The parts of an interval that are not in the union."""
        first, last = bisect_right(self.ends_s, start_s), bisect_left(self.starts_s, end_s)
        for place in range(first, last):
            if start_s < self.starts_s[place]:
                yield start_s, self.starts_s[place]
            start_s = self.ends_s[place]
        if start_s < end_s:
            yield start_s, end_s

    def overlap_s(self, start_s: float, end_s: float) -> float:
        """How much of an interval is in the union."""
        first, last = bisect_right(self.ends_s, start_s), bisect_left(self.starts_s, end_s)
        return sum(
            min(end_s, self.ends_s[place]) - max(start_s, self.starts_s[place])
            for place in range(first, last)
        )


class Charge(NamedTuple):
    """An operator's part of the time."""

    own_s: float = 0.0
    waiting_s: float = 0.0
    """Of it, what it waits for other ranks."""
    idle_s: float = 0.0
    """Before it, the device idles."""


def charges(spans: Sequence[Span], is_network: Sequence[bool]) -> list[Charge]:
    """Charges of each operator: together, all the time until the device is done."""
    charged = [Charge()] * len(spans)
    places = [place for place, span in enumerate(spans) if span.end_s > span.start_s]
    places.sort(key=lambda place: spans[place].start_s)
    compute, network, busy = Covered(), Covered(), Covered()
    for place in places:
        if not is_network[place]:
            charged[place] = Charge(compute.add(spans[place]))
    for place in places:
        span = spans[place]
        done_s = busy.ends_s[-1] if busy.ends_s else 0.0
        idle_s = max(0.0, span.start_s - done_s)
        busy.add(span)
        own_s, waiting_s = charged[place].own_s, 0.0
        if is_network[place]:
            start_s = max(span.start_s, network.ends_s[-1] if network.ends_s else 0.0)
            alone_s = network.add(span)
            if alone_s:
                own_s = alone_s - compute.overlap_s(start_s, span.end_s)
            met_s = min(span.start_s + span.waiting_s, span.end_s)
            if alone_s and met_s > start_s:
                waiting_s = met_s - start_s - compute.overlap_s(start_s, met_s)
        charged[place] = Charge(own_s, waiting_s, idle_s)
    return charged


def slots_on_streams(
    run: RankRun, spans: Sequence[Span], is_network: Sequence[bool], ends: Iterator[int]
) -> list[Slot]:
    """Each operator's part of the time; they sum to when the device is done."""
    charged = charges(spans, is_network)
    slots: list[Slot] = []
    since_launch: list[tuple[int, float]] = []
    end = next(ends, NEVER)
    for place, (op, kernel) in enumerate(zip(run.ops, run.kernels, strict=True)):
        while end <= op.clock:
            since_launch.clear()
            end = next(ends, NEVER)
        if kernel.seconds <= 0:
            since_launch.append((place, run.issued[place]))
            slots.append(SLEEPING if kernel.bound is Bound.SLEEP else NOTHING)
            continue
        own_s, waiting_s, idle_s = charged[place]
        if idle_s > run.gaps_s[place] + ROUNDING_S:
            idle_s = share_idle(idle_s, run.issued[place], since_launch, slots)
        since_launch.clear()
        parts = {kernel.bound: own_s - waiting_s, Bound.BUBBLE: waiting_s, Bound.OVERHEAD: idle_s}
        bound = max(parts, key=parts.__getitem__) if own_s + idle_s > 0 else kernel.bound
        seconds = idle_s + own_s
        span = spans[place]
        # Beside a collective a product takes longer than by itself.
        kernel_s = kernel.seconds if is_network[place] else span.end_s - span.start_s
        slots.append(Slot(seconds, kernel_s, bound, kernel.is_calibrated, waiting_s, idle_s))
    return slots

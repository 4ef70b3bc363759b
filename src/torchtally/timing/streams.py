"""When operators run on streams beside each other, and whose part of the step a moment is.

A stream works its operators off in order. One begins when its stream is free, the host has issued
it, and what its stream waits for is done. So a collective can run behind products, and the step is
shorter than the sum of its kernels.

Every moment of the step belongs to one operator: to a kernel that computes, if one runs; else to a
collective, which is *exposed* then; else to the operator that the device idles for. A collective
that runs behind others is charged nothing for that time, and its `kernel_s` is all of it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from torchtally.timing.roofline import Bound, Kernel
from torchtally.timing.slots import NOTHING, Slot, share_idle
from torchtally.trace import HOST, Op, StreamWait

NEVER = 2**63


class Span(NamedTuple):
    """When an operator runs, in seconds since the run began."""

    start_s: float
    end_s: float


class StreamQueue:
    """How far one stream is."""

    __slots__ = ("done_s", "ends_s", "ready_s", "ticks")

    def __init__(self) -> None:
        self.done_s = 0.0
        self.ready_s = 0.0
        """Before that its next operator does not begin: it waits for another stream."""
        self.ticks: list[int] = []
        self.ends_s: list[float] = []
        """When each of its operators has ended, by tick."""

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
        found = self._streams.get(number)
        if found is None:
            found = self._streams[number] = StreamQueue()
        return found

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

    def run(self, op: Op, issue_s: float, kernel_s: float) -> Span:
        """The host issues an operator, and its stream runs it."""
        self.host_s += issue_s
        stream = self.stream(op.stream)
        if kernel_s <= 0:
            return Span(stream.done_s, stream.done_s)
        start_s = max(self.host_s, stream.done_s, stream.ready_s)
        stream.done_s = start_s + kernel_s
        stream.ticks.append(op.clock)
        stream.ends_s.append(stream.done_s)
        return Span(start_s, stream.done_s)


def spans_of(
    ops: Sequence[Op],
    issued: Sequence[float],
    kernels: Sequence[Kernel],
    waits: Iterator[int],
    stream_waits: Iterator[StreamWait],
) -> list[Span]:
    device = DeviceStreams()
    spans = []
    wait = next(waits, NEVER)
    stream_wait = next(stream_waits, None)
    for op, issue_s, kernel in zip(ops, issued, kernels, strict=True):
        while stream_wait is not None and stream_wait.tick <= op.clock:
            device.wait_for(stream_wait)
            stream_wait = next(stream_waits, None)
        while wait <= op.clock:
            device.wait()
            wait = next(waits, NEVER)
        spans.append(device.run(op, issue_s, kernel.seconds))
    return spans


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

    def overlap_s(self, start_s: float, end_s: float) -> float:
        """How much of an interval is in the union."""
        first, last = bisect_right(self.ends_s, start_s), bisect_left(self.starts_s, end_s)
        return sum(
            min(end_s, self.ends_s[place]) - max(start_s, self.starts_s[place])
            for place in range(first, last)
        )


def charges(spans: Sequence[Span], is_network: Sequence[bool]) -> tuple[list[float], list[float]]:
    """(seconds that are each operator's own, seconds that the device idles before each)."""
    own_s, idle_s = [0.0] * len(spans), [0.0] * len(spans)
    places = [place for place, span in enumerate(spans) if span.end_s > span.start_s]
    places.sort(key=lambda place: spans[place].start_s)
    compute, network, busy = Covered(), Covered(), Covered()
    for place in places:
        if not is_network[place]:
            own_s[place] = compute.add(spans[place])
    for place in places:
        span = spans[place]
        done_s = busy.ends_s[-1] if busy.ends_s else 0.0
        idle_s[place] = max(0.0, span.start_s - done_s)
        busy.add(span)
        if is_network[place]:
            start_s = max(span.start_s, network.ends_s[-1] if network.ends_s else 0.0)
            alone_s = network.add(span)
            own_s[place] = alone_s - compute.overlap_s(start_s, span.end_s) if alone_s else 0.0
    return own_s, idle_s


def slots_on_streams(
    ops: Sequence[Op],
    issued: Sequence[float],
    kernels: Sequence[Kernel],
    is_network: Sequence[bool],
    waits: Iterable[int],
    ends: Iterator[int],
    stream_waits: Iterable[StreamWait],
) -> list[Slot]:
    """Each operator's part of the time; they sum to when the device is done."""
    spans = spans_of(ops, issued, kernels, iter(waits), iter(stream_waits))
    own_s, idle_s = charges(spans, is_network)
    slots: list[Slot] = []
    since_launch: list[tuple[int, float]] = []
    end = next(ends, NEVER)
    for place, (op, kernel) in enumerate(zip(ops, kernels, strict=True)):
        while end <= op.clock:
            since_launch.clear()
            end = next(ends, NEVER)
        if kernel.seconds <= 0:
            since_launch.append((place, issued[place]))
            slots.append(NOTHING)
            continue
        idle = idle_s[place]
        if since_launch:
            idle = share_idle(idle, issued[place], since_launch, slots)
            since_launch.clear()
        bound = kernel.bound if own_s[place] >= idle else Bound.OVERHEAD
        slots.append(Slot(idle + own_s[place], kernel.seconds, bound, kernel.is_calibrated))
    return slots

"""Prediction of host and device in a run that goes on: what a script's clocks and events answer."""

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from torchtally.errors import UsageError
from torchtally.timing.roofline import Roofline
from torchtally.timing.roofline.shared_power import Draw, SharedPower, seconds_at
from torchtally.timing.schedule import CallTime, DeviceQueue, call_time, issue_by_phase, no_time
from torchtally.timing.streams import DeviceStreams
from torchtally.trace import Call, Op, ProcessGroup, StreamWait, World
from torchtally.work import Kind, cost_of


class Prediction:
    """The schedule of a run so far, on the chip of a roofline. It goes on with the run.

    Each operator is placed once, so that asking often costs little. Not modelled: what
    `timing/schedule.py` says.
    """

    def __init__(self, roofline: Roofline) -> None:
        self._roofline = roofline
        self._queue = DeviceQueue()
        self._streams: DeviceStreams | None = None
        """In place of the queue, where the run communicates."""
        self._stream_waits = 0
        """How many of the run's waits of streams are passed."""
        self._issue_s: list[dict[int, float]] = []
        """By the call's number."""
        self._kernel_s: list[float] = []
        self._gap_s: list[float] = []
        self._queued: list[int] = []
        self._draws: list[Draw | None] = []
        self._power = SharedPower()
        self._waits = 0
        """How many of the run's waits are passed."""
        self._ticks = array("q")
        self._done_s = array("d")
        """When the device has done each operator."""

    @property
    def host_s(self) -> float:
        """Seconds since the beginning of the run, for the host."""
        return (self._streams or self._queue).host_s

    def join(self, world: World, groups: Sequence[ProcessGroup]) -> None:
        """The run is one rank of several; groups are those that it has made so far."""
        if world.size > 1:
            self._roofline = self._roofline.within(world, groups)
            self._streams = DeviceStreams()

    def advance(
        self,
        calls: Sequence[Call],
        ops: Sequence[Op],
        waits: Sequence[int],
        tick: int,
        stream_waits: Sequence[StreamWait] = (),
    ) -> None:
        """Place what has run since the last time, of all that has run so far.

        `waits` are the ticks before which the host waited, `tick` is the next operator's.
        """
        new = ops[len(self._ticks) :]  # before their calls: other threads go on meanwhile
        for call in calls[len(self._kernel_s) :]:
            time = self._time(call)
            self._issue_s.append(issue_by_phase(self._roofline.issue, time))
            self._kernel_s.append(time.kernel.seconds)
            self._gap_s.append(time.gap_s)
            self._queued.append(time.queued)
            self._draws.append(self._draw(call, time))
        kernel_s = self._kernel_s_beside(new)
        if self._streams is not None:
            self._advance_streams(self._streams, kernel_s, new, waits, tick, stream_waits)
            return
        queue, is_host = self._queue, self._roofline.is_host
        for op in new:
            self._pass_waits(waits, op.clock)
            issue_s = self._issue_s[op.call][id(op.phase)]
            if is_host:
                queue.compute(issue_s, kernel_s[op.call])
            else:
                queue.issue(issue_s, kernel_s[op.call], self._gap_s[op.call], self._queued[op.call])
            self._ticks.append(op.clock)
            self._done_s.append(queue.device_s)
        self._pass_waits(waits, tick)

    def _advance_streams(
        self,
        streams: DeviceStreams,
        kernel_s: Sequence[float],
        new: Sequence[Op],
        waits: Sequence[int],
        tick: int,
        stream_waits: Sequence[StreamWait],
    ) -> None:
        def pass_waits(tick: int) -> None:
            while self._stream_waits < len(stream_waits):
                if stream_waits[self._stream_waits].tick > tick:
                    break
                streams.wait_for(stream_waits[self._stream_waits])
                self._stream_waits += 1
            self._pass_waits(waits, tick)

        for op in new:
            pass_waits(op.clock)
            streams.run(
                op,
                self._issue_s[op.call][id(op.phase)],
                kernel_s[op.call],
                self._gap_s[op.call],
                self._queued[op.call],
            )
            self._ticks.append(op.clock)
            self._done_s.append(streams.device_s)
        pass_waits(tick)

    def _draw(self, call: Call, time: CallTime) -> Draw | None:
        if not self._roofline.shares_power or time.kernel.seconds <= 0:
            return None
        return self._roofline.draw(call, *cost_of(call), time.kernel)

    def _kernel_s_beside(self, ops: Sequence[Op]) -> Sequence[float]:
        """Seconds of each call's kernel, beside all that have run and these operators."""
        if not self._roofline.shares_power:
            return self._kernel_s
        for op in ops:
            self._power.add(self._draws[op.call])
        return [
            seconds_at(self._power.pace, seconds, draw)
            for seconds, draw in zip(self._kernel_s, self._draws, strict=True)
        ]

    def _pass_waits(self, waits: Sequence[int], tick: int) -> None:
        while self._waits < len(waits) and waits[self._waits] <= tick:
            (self._streams or self._queue).wait()
            self._waits += 1

    def between(self, first_tick: int, end_tick: int) -> float:
        """The device's seconds for operators at first_tick <= t < end_tick, and its idle time
        before them.
        """
        return self._device_s_before(end_tick) - self._device_s_before(first_tick)

    def _device_s_before(self, tick: int) -> float:
        place = bisect_left(self._ticks, tick)
        return self._done_s[place - 1] if place else 0.0

    def kernel_s(self, call: Call) -> float:
        """Seconds of the call alone, on the device."""
        return self._time(call).kernel.seconds

    def _time(self, call: Call) -> CallTime:
        """A call without a time counts as zero here; the report of the run lists it."""
        try:
            kind, cost = cost_of(call)
            return call_time(call, kind, cost, self._roofline)
        except UsageError:
            return no_time(call, Kind.UNCOUNTED)

"""When each operator runs: the host issues them one by one, the device works them off.

A GPU begins an operator when it has done the one before and the host has issued this one; one that
queued begins a little later, for each of its kernels (`Roofline.gap_s`), which does not show where
the host is later still. A host that is as far ahead as the queue holds launches waits for the
device (`timing/launch_queue.py`). An operator is charged the time from the end of the one before
it to its own end: its kernel, and the time the device idled before it. So the times of the
operators sum to the time of the step.

A CPU is host and device in one: issuing and computing follow each other.

Where a run has collectives, streams run beside each other: `timing/streams.py`. Elsewhere operators
of all streams run in the order they were issued in, from one queue.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torchtally.timing.calibration import Issue
from torchtally.timing.constants import COMPILED_ISSUE
from torchtally.timing.launch_queue import LaunchQueue, has_known_queue
from torchtally.timing.ranks import RankRun, Span, play
from torchtally.timing.roofline import Bound, Kernel, Roofline
from torchtally.timing.roofline.launches import is_in_graph, launches_of
from torchtally.timing.roofline.lists import listed_tensors
from torchtally.timing.slots import NOTHING, SLEEPING, Slot, share_idle
from torchtally.timing.streams import slots_on_streams
from torchtally.trace import FORWARD_PHASES, Call, Op, Phase, Trace
from torchtally.trace.sleep import sleep_s
from torchtally.work import Cost, Kind


class CallTime(NamedTuple):
    """What the time of an operator takes from its call alone."""

    kernel: Kernel
    kind: Kind
    extra_launches: int
    """Kernels beyond the first."""
    is_in_graph: bool = False
    """A CUDA graph issues it with the others that it has captured."""
    is_compiled: bool = False
    """A kernel that a compiler wrote, launched by its program."""
    listed: int = 0
    """Tensors in the longest of its lists; 0 of an operator on single tensors."""
    gap_s: float = 0.0
    """What passes before its kernels, where they queue."""
    queued: int = 0
    """Places that its launches take in the queue; none in a CUDA graph, which takes one in all."""
    sleep_s: float = 0.0
    """Of the script's own sleep."""


def call_time(call: Call, kind: Kind, cost: Cost, roofline: Roofline) -> CallTime:
    """Raises UsageError where the chip lacks a number that the time depends on."""
    if kind is Kind.SLEEP:
        return no_time(call, kind)
    kernel = roofline.kernel(call, kind, cost)
    extra = 0 if roofline.is_host else max(0, launches_of(call, kind, cost) - 1)
    is_compiled, is_captured = call.fused is not None, is_in_graph(call)
    takes_places = kernel.seconds > 0 and not is_captured and has_known_queue(roofline.chip)
    return CallTime(
        kernel, kind, extra, is_captured, is_compiled, listed_tensors(call),
        roofline.gap_s(call, kind, cost), 1 + extra if takes_places else 0,
    )  # fmt: skip


def no_time(call: Call, kind: Kind) -> CallTime:
    """The time of a call that runs no kernel, or of which no time is known."""
    bound = Bound.SLEEP if kind is Kind.SLEEP else Bound.OVERHEAD
    return CallTime(Kernel(0.0, bound), kind, 0, is_in_graph(call), sleep_s=sleep_s(call))


class DeviceQueue:
    """How far the host and the device are, in seconds since they began."""

    __slots__ = ("_launches", "device_s", "host_s")

    def __init__(self) -> None:
        self.host_s = self.device_s = 0.0
        self._launches = LaunchQueue[float]()
        """With the moments at which operators end."""

    def wait(self) -> None:
        """The host waits until the device has done all that it was given."""
        self.host_s = max(self.host_s, self.device_s)

    def issue(self, issue_s: float, kernel_s: float, gap_s: float, queued: int) -> float:
        """The host issues an operator and the device runs it; how long the device idled for it."""
        if queued:
            self.host_s = max(self.host_s, self._launches.make_room(queued) or 0.0)
        self.host_s += issue_s
        if kernel_s <= 0:
            return 0.0
        idle_s = max(self.host_s - self.device_s, gap_s)
        self.device_s += idle_s + kernel_s
        if queued:
            self._launches.add(self.device_s, queued)
        return idle_s

    def compute(self, issue_s: float, kernel_s: float) -> None:
        """The same for a CPU, which issues an operator and then computes it."""
        self.host_s += issue_s + kernel_s
        self.device_s = self.host_s


class TimedOps(NamedTuple):
    """Operators of a trace, and the times of its calls by number."""

    trace: Trace
    ops: Sequence[Op]
    times: Sequence[CallTime]

    def run(self, issue: Issue) -> RankRun:
        issue_s_by_call = [issue_by_phase(issue, time) for time in self.times]
        trace = self.trace
        return RankRun(
            self.ops,
            [issue_s_by_call[op.call][id(op.phase)] for op in self.ops],
            [self.times[op.call].kernel for op in self.ops],
            [self.times[op.call].gap_s for op in self.ops],
            [self.times[op.call].queued for op in self.ops],
            trace.waits,
            trace.stream_waits,
            trace.coalesced,
            trace.world.rank,
            trace.calls,
            trace.groups,
        )

    @property
    def communicates(self) -> bool:
        return any(time.kind is Kind.COMMUNICATION for time in self.times)

    @property
    def is_network(self) -> list[bool]:
        return [self.times[op.call].kind is Kind.COMMUNICATION for op in self.ops]


class Timetable(NamedTuple):
    """When operators of ranks run."""

    slots: tuple[list[Slot], ...]
    """Of each rank."""
    stuck: int = 0
    """As `timing.ranks.RankTimes.stuck`."""
    spans: tuple[list[Span], ...] = ()
    """Of each rank, where streams run beside each other; else operators follow one another."""


def schedule(parts: Sequence[TimedOps], roofline: Roofline) -> Timetable:
    """When every operator runs, of one rank or of several that wait for each other.

    Streams run beside each other where the run has a collective.
    """
    runs = [part.run(roofline.issue) for part in parts]
    if roofline.is_host:
        return Timetable(tuple(list(map(slot_in_line, run.issued, run.kernels)) for run in runs))
    if not any(part.communicates for part in parts):
        ends = [iter(part.trace.step_ends) for part in parts]
        return Timetable(tuple(map(slots_beside, runs, ends)))
    played = play(runs)
    return Timetable(
        tuple(
            slots_on_streams(run, spans, part.is_network, iter(part.trace.step_ends))
            for part, run, spans in zip(parts, runs, played.spans, strict=True)
        ),
        played.stuck,
        played.spans,
    )


def slot_in_line(issue_s: float, kernel: Kernel) -> Slot:
    """A CPU issues an operator, then computes it."""
    is_own = kernel.seconds >= issue_s or kernel.bound is Bound.SLEEP
    bound = kernel.bound if is_own else Bound.OVERHEAD
    return Slot(issue_s + kernel.seconds, kernel.seconds, bound, kernel.is_calibrated)


def slots_beside(run: RankRun, ends: Iterator[int]) -> list[Slot]:
    """A GPU computes while the host goes on."""
    waits = iter(run.waits)
    queue = DeviceQueue()
    slots: list[Slot] = []
    since_launch: list[tuple[int, float]] = []
    wait, end = next(waits, NEVER), next(ends, NEVER)
    for place, (op, issue_s, kernel, gap_s, queued) in enumerate(
        zip(run.ops, run.issued, run.kernels, run.gaps_s, run.queued, strict=True)
    ):
        tick = op.clock
        while wait <= tick:
            queue.wait()
            wait = next(waits, NEVER)
        while end <= tick:
            since_launch.clear()  # idle time is not charged to operators of the step before
            end = next(ends, NEVER)
        kernel_s = kernel.seconds
        idle_s = queue.issue(issue_s, kernel_s, gap_s, queued)
        if kernel_s <= 0:
            since_launch.append((place, issue_s))
            slots.append(SLEEPING if kernel.bound is Bound.SLEEP else NOTHING)
            continue
        if idle_s > gap_s:
            idle_s = share_idle(idle_s, issue_s, since_launch, slots)
        since_launch.clear()
        bound = kernel.bound if kernel_s >= idle_s else Bound.OVERHEAD
        slots.append(Slot(idle_s + kernel_s, kernel_s, bound, kernel.is_calibrated))
    return slots


NEVER = 2**63
_LIKE_FORWARD = tuple(map(id, (*FORWARD_PHASES, Phase.RECOMPUTE, Phase.EVALUATION)))


def issue_by_phase(issue: Issue, time: CallTime) -> dict[int, float]:
    """Seconds the host takes to issue an operator and its kernels, by the id of the phase.

    By id, since an enum's `__hash__` runs Python code, too slow once per operator.
    """
    if time.sleep_s:
        return dict.fromkeys(map(id, Phase), time.sleep_s)
    if time.is_in_graph:
        return dict.fromkeys(map(id, Phase), 0.0)
    if time.kind.is_free:
        return {id(phase): issue.view_s for phase in Phase}
    if time.is_compiled:
        return dict.fromkeys(map(id, Phase), COMPILED_ISSUE * issue.forward_s)
    extra_s = time.extra_launches * issue.launch_s + time.listed * issue.list_s
    return {
        **dict.fromkeys(_LIKE_FORWARD, issue.forward_s + extra_s),
        id(Phase.BACKWARD): issue.backward_s + extra_s,
        id(Phase.OPTIMIZER): issue.optimizer_s + extra_s,
    }

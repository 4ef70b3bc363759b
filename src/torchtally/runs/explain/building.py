"""A profile as a trace: operators that a dispatch mode would see, with their kernels' times.

The clock ticks in the order in which the host called operators. A backward operator belongs to the
forward one of its autograd node, which has the same sequence number, as in a simulated run.
"""

import math
import os
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeGuard

from torchtally.chips import Chip
from torchtally.chips.dtypes import DTYPE_BYTES
from torchtally.profiles import Arguments, DeviceActivity, HostOperator, Profile
from torchtally.profiles.profile import DEVICE, NOWHERE
from torchtally.runs.explain.allocations import AllocatorEvents
from torchtally.runs.explain.collectives import collective_call, groups_of
from torchtally.runs.explain.phases import HostLaunch, Phases, step_ends
from torchtally.runs.explain.replaying import NotReplayedError, Replayer, contiguous, replayer
from torchtally.runs.explain.schemas import DTYPES, is_shown
from torchtally.runs.explain.sites import Sites
from torchtally.runs.explain.untyped import with_types
from torchtally.trace import (
    Call,
    Ending,
    LostTime,
    Measured,
    MeasuredKernel,
    Note,
    Op,
    Phase,
    TensorSpec,
    Trace,
    World,
    communicator_stream,
)
from torchtally.trace.measured import NOT_COUNTED, UNKNOWN_NS
from torchtally.trace.op import UNRECORDED
from torchtally.work import known_cost

OF_AN_EARLIER_STEP = "launched before the profiler began"
ON_OTHER_DEVICES = "on other devices of this process"


def trace_of(profile: Profile, chip: Chip, *, is_host: bool) -> Trace:
    """The trace of what a profiler recorded, on this chip. `is_host`: nothing ran on a GPU."""
    return Builder(with_types(profile), chip, is_host=is_host).trace()


class Builder:
    def __init__(self, profile: Profile, chip: Chip, *, is_host: bool) -> None:
        self.profile = profile
        self.chip = chip
        self.is_host = is_host
        self.sites = Sites(profile)
        self.groups = groups_of(profile)
        self._calls: dict[Call, int] = {}
        self._table: list[Call] = []
        """The calls by number."""
        self._replayed: dict[object, tuple[tuple[int, ...], str]] = {}
        """The calls of a launch's kind, and why they could not be repeated."""
        self._failures: Counter[str] = Counter()
        self._phases = Phases(profile, self.sites)
        self._ops: list[Op] = []
        self._ticks_us: list[float] = []
        """When the host called each."""
        self._kernels: list[tuple[int, DeviceActivity]] = []
        """Each with the place of its operator."""
        self._host_ops = 0
        self._tick_of_sequence: dict[int, int] = {}
        """The operator that made an autograd node, by the node's sequence number."""
        self._differentiated: set[int] = set()

    def trace(self) -> Trace:
        profile = self.profile
        activities, lost = self._choose_activities()
        launches = sorted(self._launches(activities), key=lambda launch: launch.at_us)
        float_dtype = DTYPES[commonest_float(profile)]
        with replayer(self.chip, float_dtype, is_host=self.is_host) as replay:
            for launch in launches:
                self._add(launch, self._numbers(launch, replay))
        measured = self._measure(self._kernels, lost)
        memory = AllocatorEvents(profile.memory, self._ticks_us)
        return Trace(
            script=f"{os.path.basename(profile.file)}",
            chip=self.chip.name,
            torch_version="",
            calls=tuple(self._table),
            sites=self.sites.table,
            ops=tuple(self._ops),
            storages=tuple(memory.storages),
            step_ends=tuple(step_ends(profile, self._ticks_us)),
            ending=Ending("exit"),
            differentiated=tuple(sorted(self._differentiated)),
            notes=tuple(self._notes()),
            reserved=tuple(memory.reserved),
            waits=tuple(self._waits()),
            host_ops=self._host_ops,
            facts=dict(profile.facts),
            world=World(profile.world_size, min(profile.world_size, 8), profile.rank),
            groups=self.groups.table,
            measured=measured,
        )

    def _add(self, launch: HostLaunch, numbers: Sequence[int]) -> None:
        """The launch as operators of the trace; counted alone where it computes on the host."""
        if not launch.activities and not self.is_host and not self._is_free(numbers):
            self._host_ops += 1  # it has launched nothing
            return
        phase, site, sequence = self._phases.of(launch)
        if self.is_host and phase is Phase.OPTIMIZER and self._counts_steps(numbers):
            self._host_ops += 1
            return
        first = len(self._ops)
        for number in numbers:
            call = self._table[number]
            inputs, outputs = (-1,) * len(call.inputs), (-1,) * len(call.outputs)
            stream = self._stream(call, launch)
            self._ops.append(Op(len(self._ops), number, site, phase, inputs, outputs, stream))
            self._ticks_us.append(launch.at_us)
        if sequence is not None and phase is Phase.BACKWARD:
            if sequence in self._tick_of_sequence:
                self._differentiated.add(self._tick_of_sequence[sequence])
        elif sequence is not None and phase is not Phase.OPTIMIZER:
            self._tick_of_sequence[sequence] = first
        self._kernels += self._share_kernels(first, numbers, launch.activities)

    # Kernels and operators.

    def _choose_activities(self) -> tuple[list[DeviceActivity], list[LostTime]]:
        """The activities of the busiest device; what is left out, with the reason."""
        if self.is_host:
            return [], []
        busy_us: Counter[int] = Counter()
        for activity in self.profile.activities:
            busy_us[activity.device] += activity.duration_us  # type: ignore[assignment]
        device = max(busy_us, key=lambda number: busy_us[number], default=0)
        linked = [
            activity.start_us
            for activity in self.profile.activities
            if activity.operator != NOWHERE and activity.device == device
        ]
        first_us = min(linked, default=-math.inf)
        kept: list[DeviceActivity] = []
        dropped: dict[str, list[DeviceActivity]] = defaultdict(list)
        for activity in self.profile.activities:
            has_launch = activity.operator != NOWHERE or not math.isnan(activity.launched_us)
            if activity.device != device:
                dropped[ON_OTHER_DEVICES].append(activity)
            elif not has_launch and activity.start_us < first_us:
                dropped[OF_AN_EARLIER_STEP].append(activity)
            else:
                kept.append(activity)
        lost = [
            LostTime(reason, len(parts), sum(ns(part.duration_us) for part in parts))
            for reason, parts in dropped.items()
        ]
        lost += [
            LostTime(part.reason, part.activities, ns(part.duration_us))
            for part in self.profile.left_out
        ]
        return kept, lost

    def _launches(self, activities: Sequence[DeviceActivity]) -> Iterator[HostLaunch]:
        """Operators as a dispatch mode sees them, and kernels that are of none."""
        operators = self.profile.operators
        owner = shown_operators(self.profile)
        of_operator: dict[int, list[DeviceActivity]] = defaultdict(list)
        alone: dict[object, list[DeviceActivity]] = {}
        for activity in activities:
            number = activity.operator
            if number == NOWHERE:
                key = (activity.launched_us, activity.name)
                alone.setdefault(key if activity.is_in_graph else activity, []).append(activity)
                continue
            of_operator[owner[number] if owner[number] != NOWHERE else number].append(activity)
        for number, operator in enumerate(operators):
            is_own = owner[number] == number
            launched = of_operator.get(number, ())
            if not is_own and not launched:
                continue
            if is_own or "::" in operator.name:
                yield HostLaunch(
                    operator.start_us,
                    operator.name,
                    operator.arguments,
                    number,
                    operator.stack,
                    self._host_activity(operator) if self.is_host else tuple(launched),
                    operator.annotation,
                )
                continue
            # Compiled code, a function of autograd's: what it launches by itself are kernels.
            for activity in launched:
                name = f"kernel.{plain_name(activity.name)}"
                yield HostLaunch(
                    launch_us(activity),
                    name,
                    0,
                    number,
                    operator.stack,
                    (activity,),
                    operator.annotation,
                )
        for parts in alone.values():
            name = f"kernel.{plain_name(parts[0].name)}"
            first = parts[0]
            yield HostLaunch(
                launch_us(first), name, 0, NOWHERE, first.stack, tuple(parts), first.annotation
            )

    def _host_activity(self, operator: HostOperator) -> tuple[DeviceActivity, ...]:
        """Activities of a CPU: the operator is its own kernel."""
        return (
            DeviceActivity(
                operator.name,
                "host",
                operator.start_us,
                operator.end_us - operator.start_us,
                0,
                operator.thread,
                NOWHERE,
                operator.start_us,
                False,
                0,
            ),
        )

    def _numbers(self, launch: HostLaunch, replay: Replayer) -> tuple[int, ...]:
        """The launch's calls, by number."""
        kernels = tuple(dict.fromkeys(activity.name for activity in launch.activities))
        key = (launch.name, launch.arguments, kernels)
        known = self._replayed.get(key)
        if known is None:
            calls, failure = self._calls_of(launch, replay, kernels)
            known = self._replayed[key] = tuple(map(self._number, calls)), failure
        numbers, failure = known
        if failure and launch.activities:
            self._failures[failure] += 1
        return numbers

    def _number(self, call: Call) -> int:
        number = self._calls.get(call)
        if number is None:
            number = self._calls[call] = len(self._table)
            self._table.append(call)
        return number

    def _calls_of(
        self, launch: HostLaunch, replay: Replayer, kernels: Sequence[str]
    ) -> tuple[tuple[Call, ...], str]:
        """The calls that a launch is, and why not if they cannot be told."""
        arguments = self.profile.arguments[launch.arguments]
        collective = collective_call(launch.activities, launch.name, arguments, self.groups)
        if collective is not None:
            return (collective,), ""
        if launch.name.startswith("kernel."):
            return (Call(launch.name, "", (), (), UNRECORDED),), ""
        try:
            calls = replay.calls(launch.name, arguments, kernels)
        except NotReplayedError as error:
            return (recorded_call(launch.name, arguments),), f"{launch.name}: {error}"
        return calls or (recorded_call(launch.name, arguments),), ""

    def _counts_steps(self, numbers: Sequence[int]) -> bool:
        """The steps that an optimizer counts are the host's, as beside a GPU."""
        specs = [spec for number in numbers for spec in self._table[number].inputs]
        return not any(spec.shape for spec in specs)

    def _is_free(self, numbers: Sequence[int]) -> bool:
        table = self._table
        return all(is_free(table[number]) for number in numbers)

    def _share_kernels(
        self, first: int, numbers: Sequence[int], activities: Sequence[DeviceActivity]
    ) -> Iterator[tuple[int, DeviceActivity]]:
        """Which of a launch's calls has which of its kernels: one each where there are as many
        that compute, else the one that moves most has them all.
        """
        table = self._table
        computing = [place for place, number in enumerate(numbers) if not is_free(table[number])]
        if len(computing) == len(activities):
            ordered = sorted(activities, key=lambda activity: activity.start_us)
            for place, activity in zip(computing, ordered, strict=True):
                yield first + place, activity
            return
        heaviest = max(range(len(numbers)), key=lambda place: work_and_count(table[numbers[place]]))
        for activity in activities:
            yield first + heaviest, activity

    def _stream(self, call: Call, launch: HostLaunch) -> int:
        number = call.literal("group")
        if isinstance(number, int):
            return communicator_stream(number)
        streams = Counter(activity.stream for activity in launch.activities)
        stream = max(streams, key=lambda each: streams[each], default=0)
        return max(0, min(stream, 0xFFFF))

    # Facts.

    def _measure(
        self, kernels: Iterable[tuple[int, DeviceActivity]], lost: Sequence[LostTime]
    ) -> Measured:
        ordered = sorted(kernels, key=lambda pair: pair[1].start_us)
        origin_us = ordered[0][1].start_us if ordered else 0.0
        names: dict[str, int] = {}
        profile = self.profile
        return Measured(
            made_by=profile.made_by,
            file=os.path.basename(profile.file),
            kernels=tuple(
                MeasuredKernel(
                    names.setdefault(activity.name, len(names)),
                    op,
                    activity.stream,
                    ns(activity.start_us - origin_us),
                    ns(activity.duration_us),
                    launched_ns(activity.launched_us, origin_us),
                    activity.is_in_graph,
                )
                for op, activity in ordered
            ),
            names=tuple(names),
            lost=tuple(lost),
            is_on_host=self.is_host,
            has_shapes=profile.has_shapes,
            has_lines=profile.has_stacks,
            has_memory=any(change.device >= 0 for change in profile.memory),
            host_waits=tuple(
                (ns(max(0.0, wait.start_us - origin_us)), ns(wait.end_us - origin_us))
                for wait in profile.waits
                if wait.end_us > origin_us
            ),
        )

    def _waits(self) -> Iterator[int]:
        """Ticks before which the host waited for the device."""
        if self.is_host:
            return
        before = -1
        for wait in self.profile.waits:
            tick = bisect_left(self._ticks_us, wait.end_us)
            if before < tick < len(self._ticks_us):
                before = tick
                yield tick

    def _notes(self) -> Iterator[Note]:
        profile = self.profile
        if profile.unreadable:
            yield Note("events of the file not of the form a profiler writes", profile.unreadable)
        for text, count in profile.notes:
            yield Note(text, count)
        for failure, count in self._failures.most_common(MOST_FAILURES):
            yield Note(NOT_COUNTED + failure, count)


MOST_FAILURES = 30


def shown_operators(profile: Profile) -> list[int]:
    """Numbers of the operators of the trace that each host operator is a part of, or is; NOWHERE
    above it.

    An operator of another library is taken apart into operators of PyTorch within it.
    """
    owner: list[int] = []
    shown: dict[tuple[str, int], bool] = {}
    for number, operator in enumerate(profile.operators):
        parent = NOWHERE if operator.parent == NOWHERE else owner[operator.parent]
        if parent == NOWHERE:
            key = (operator.name, operator.arguments)
            is_one = shown.get(key)
            if is_one is None:
                arguments = profile.arguments[operator.arguments]
                is_one = shown[key] = is_shown(operator.name, arguments) is True
            parent = number if is_one else NOWHERE
        owner.append(parent)
    return owner


def is_free(call: Call) -> bool:
    known = known_cost(call)
    return known is not None and known[0].is_free


def work_and_count(call: Call) -> tuple[int, int]:
    known = known_cost(call)
    return (0, 0) if known is None else (known[1].bytes + known[1].flops, 1)


def recorded_call(name: str, arguments: Arguments) -> Call:
    """A call of which only what was recorded is known."""
    shapes = arguments.shapes or ()
    strides = arguments.strides or (None,) * len(shapes)
    specs = []
    for place, (shape, stride, kind) in enumerate(
        zip(shapes, strides, arguments.types, strict=False)
    ):
        dtype = str(DTYPES.get(kind, "")).removeprefix("torch.")
        if dtype not in DTYPE_BYTES or not is_plain(shape):
            continue
        known = stride if is_plain(stride) and len(stride) == len(shape) else contiguous(shape)
        specs.append(TensorSpec(f"argument{place}", shape, known, dtype, DEVICE, place))
    return Call(name.replace("::", ".", 1)[:MOST_NAME], "", tuple(specs), (), UNRECORDED)


MOST_NAME = 200


def is_plain(value: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(isinstance(each, int) for each in value)


def commonest_float(profile: Profile) -> str:
    """Commonest float of the arguments of all operators."""
    types: Counter[str] = Counter()
    for operator in profile.operators:
        if operator.arguments:
            types.update(
                kind
                for kind in profile.arguments[operator.arguments].types
                if kind in ("c10::BFloat16", "c10::Half", "float")
            )
    return types.most_common(1)[0][0] if types else "float"


def plain_name(kernel: str) -> str:
    """A kernel's name without its template arguments and parameters."""
    plain = kernel.removeprefix("void ")
    for end in ("<", "("):
        plain = plain.partition(end)[0] or plain
    return plain[:MOST_NAME] or "unnamed"


def launch_us(activity: DeviceActivity) -> float:
    """When the host launched it; where that is unknown, when it began."""
    return activity.start_us if math.isnan(activity.launched_us) else activity.launched_us


def ns(microseconds: float) -> int:
    return max(0, round(microseconds * 1e3))


def launched_ns(launched_us: float, origin_us: float) -> int:
    if math.isnan(launched_us) or launched_us < origin_us:
        return UNKNOWN_NS
    return ns(launched_us - origin_us)

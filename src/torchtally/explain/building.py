"""A profile as a trace: operators that a dispatch mode would see, with their kernels' times.

The clock ticks in the order in which the host called operators. A backward operator belongs to the
forward one of its autograd node, which has the same sequence number, as in a simulated run.
"""

import math
import os
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeGuard

from torchtally.chips import Chip
from torchtally.chips.dtypes import DTYPE_BYTES
from torchtally.explain.collectives import collective_call, groups_of
from torchtally.explain.replaying import NotReplayedError, Replayer, contiguous, replayer
from torchtally.explain.schemas import DTYPES, is_shown
from torchtally.explain.sites import Sites
from torchtally.explain.untyped import with_types
from torchtally.profiles import Arguments, DeviceActivity, HostOperator, MemoryChange, Profile
from torchtally.profiles.profile import NOWHERE
from torchtally.trace import (
    Call,
    Ending,
    LostTime,
    Measured,
    MeasuredKernel,
    Note,
    Op,
    Phase,
    Reserved,
    Storage,
    TensorSpec,
    Trace,
    World,
    communicator_stream,
)
from torchtally.trace.measured import NOT_COUNTED, UNKNOWN_NS
from torchtally.work import Kind, cost_of

DEVICE = "cuda:0"
ENGINE = "autograd::engine::evaluate_function"
OPTIMIZER_STEP = "Optimizer.step#"
STEP = "ProfilerStep#"
OF_AN_EARLIER_STEP = "launched before the profiler began"
ON_OTHER_DEVICES = "on other devices of this process"


class HostLaunch(NamedTuple):
    """What is to become operators of the trace: one of the host's, or kernels that have none."""

    at_us: float
    name: str
    arguments: int
    operator: int
    """NOWHERE for kernels without a host operator."""
    stack: int
    activities: tuple[DeviceActivity, ...]


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
        self._replayed: dict[object, tuple[int, ...]] = {}
        self._failures: Counter[str] = Counter()
        self._phases = Phases(profile, self.sites)

    def trace(self) -> Trace:
        profile = self.profile
        activities, lost = self._chosen()
        launches = sorted(self._launches(activities), key=lambda launch: launch.at_us)
        float_dtype = DTYPES[commonest_float(profile)]
        ops: list[Op] = []
        kernels: list[tuple[int, DeviceActivity]] = []
        ticks_us: list[float] = []
        tick_of_sequence: dict[int, int] = {}
        differentiated: set[int] = set()
        host_ops = 0
        with replayer(self.chip, float_dtype, is_host=self.is_host) as replay:
            for launch in launches:
                numbers = self._numbers(launch, replay)
                if not launch.activities and not self.is_host and not self._is_free(numbers):
                    host_ops += 1  # computes on the host: it has launched nothing
                    continue
                phase, site, sequence = self._phases.of(launch)
                if self.is_host and phase is Phase.OPTIMIZER and self._counts_steps(numbers):
                    host_ops += 1
                    continue
                first = len(ops)
                for number in numbers:
                    call = self._table[number]
                    ops.append(
                        Op(
                            len(ops),
                            number,
                            site,
                            phase,
                            (-1,) * len(call.inputs),
                            (-1,) * len(call.outputs),
                            self._stream(call, launch),
                        )
                    )
                    ticks_us.append(launch.at_us)
                if sequence is not None:
                    if phase is Phase.BACKWARD:
                        differentiated.update(
                            tick for tick in [tick_of_sequence.get(sequence)] if tick is not None
                        )
                    elif phase is not Phase.OPTIMIZER:
                        tick_of_sequence[sequence] = first
                kernels += self._shared(first, numbers, launch.activities)
        measured = self._measured(kernels, lost)
        memory = AllocatorEvents(profile.memory, ticks_us)
        return Trace(
            script=f"{os.path.basename(profile.file)}",
            chip=self.chip.name,
            torch_version="",
            calls=tuple(self._table),
            sites=self.sites.table,
            ops=tuple(ops),
            storages=tuple(memory.storages),
            step_ends=tuple(step_ends(profile, ticks_us)),
            ending=Ending("exit"),
            differentiated=tuple(sorted(differentiated)),
            notes=tuple(self._notes()),
            reserved=tuple(memory.reserved),
            waits=tuple(self._waits(ticks_us)),
            host_ops=host_ops,
            facts=dict(profile.facts),
            world=World(profile.world_size, min(profile.world_size, 8), profile.rank),
            groups=self.groups.table,
            measured=measured,
        )

    # Kernels and operators.

    def _chosen(self) -> tuple[list[DeviceActivity], list[LostTime]]:
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
                )
                continue
            # Compiled code, a function of autograd's: what it launches by itself are kernels.
            for activity in launched:
                name = f"kernel.{plain_name(activity.name)}"
                yield HostLaunch(launch_us(activity), name, 0, number, operator.stack, (activity,))
        for parts in alone.values():
            name = f"kernel.{plain_name(parts[0].name)}"
            yield HostLaunch(launch_us(parts[0]), name, 0, NOWHERE, parts[0].stack, tuple(parts))

    def _host_activity(self, operator: HostOperator) -> tuple[DeviceActivity, ...]:
        """Of a CPU: the operator is its own kernel."""
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
        numbers = self._replayed.get(key)
        if numbers is None:
            calls = self._called(launch, replay, kernels)
            numbers = tuple(map(self._number, calls))
            self._replayed[key] = numbers
        return numbers

    def _number(self, call: Call) -> int:
        number = self._calls.get(call)
        if number is None:
            number = self._calls[call] = len(self._table)
            self._table.append(call)
        return number

    def _called(
        self, launch: HostLaunch, replay: Replayer, kernels: Sequence[str]
    ) -> tuple[Call, ...]:
        arguments = self.profile.arguments[launch.arguments]
        collective = collective_call(launch.activities, launch.name, arguments, self.groups)
        if collective is not None:
            return (collective,)
        if launch.name.startswith("kernel."):
            return (Call(launch.name, "", (), (), UNRECORDED),)
        try:
            calls = replay.calls(launch.name, arguments, kernels)
        except NotReplayedError as error:
            self._failures[f"{launch.name}: {error}"] += 1
            return (unreplayed(launch.name, arguments),)
        return calls or (unreplayed(launch.name, arguments),)

    def _counts_steps(self, numbers: Sequence[int]) -> bool:
        """The steps that an optimizer counts are the host's, as beside a GPU."""
        specs = [spec for number in numbers for spec in self._table[number].inputs]
        return not any(spec.shape for spec in specs)

    def _is_free(self, numbers: Sequence[int]) -> bool:
        table = self._table
        return all(is_free(table[number]) for number in numbers)

    def _shared(
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
        heaviest = max(range(len(numbers)), key=lambda place: moved(table[numbers[place]]))
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

    def _measured(
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

    def _waits(self, ticks_us: Sequence[float]) -> Iterator[int]:
        """Ticks before which the host waited for the device."""
        if self.is_host:
            return
        before = -1
        for wait in self.profile.waits:
            tick = bisect_left(ticks_us, wait.end_us)
            if before < tick < len(ticks_us):
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


class Phases:
    """The phase and place of a host operator."""

    def __init__(self, profile: Profile, sites: Sites) -> None:
        self._operators = profile.operators
        self._annotations = profile.annotations
        self._sites = sites
        self._site_of_sequence: dict[int, int] = {}
        for operator in profile.operators:
            if operator.sequence >= 0 and not operator.forward_thread and operator.stack != NOWHERE:
                self._site_of_sequence.setdefault(operator.sequence, operator.stack)

    def of(self, launch: HostLaunch) -> tuple[Phase, int, int | None]:
        """(phase, site, number of the autograd node that it makes or that runs it)."""
        if launch.operator == NOWHERE:
            return Phase.FORWARD, self._sites.number(launch.stack), None
        operator = self._operators[launch.operator]
        if self._is_in_optimizer(operator.annotation):
            return Phase.OPTIMIZER, self._sites.number(operator.stack), None
        chain = [operator, *self._around(operator)]
        engine = next((each for each in chain if each.name.startswith(ENGINE)), None)
        if engine is None:
            sequence = next((each.sequence for each in chain if each.sequence >= 0), None)
            return Phase.FORWARD, self._sites.number(operator.stack), sequence
        made = next(
            (each for each in chain if each.sequence >= 0 and each.sequence != engine.sequence
             and not each.forward_thread and not each.name.startswith(ENGINE)),
            None,
        )  # fmt: skip
        if made is not None or self._sites.recomputes(operator.stack):
            # Makes autograd nodes while the engine runs: a forward pass that is done again.
            return Phase.RECOMPUTE, self._sites.number(operator.stack), (
                None if made is None else made.sequence
            )  # fmt: skip
        sequence = engine.sequence if engine.sequence >= 0 else None
        stack = operator.stack
        if sequence is not None:
            stack = self._site_of_sequence.get(sequence, stack)
        return Phase.BACKWARD, self._sites.number(stack), sequence

    def _around(self, operator: HostOperator) -> Iterator[HostOperator]:
        while operator.parent != NOWHERE:
            operator = self._operators[operator.parent]
            yield operator

    def _is_in_optimizer(self, annotation: int) -> bool:
        while annotation != NOWHERE:
            row = self._annotations[annotation]
            if row.name.startswith(OPTIMIZER_STEP):
                return True
            annotation = row.parent
        return False


class AllocatorEvents:
    """Storages and reserved bytes by the allocator's events, on the trace's clock."""

    def __init__(self, changes: Sequence[MemoryChange], ticks_us: Sequence[float]) -> None:
        self.storages: list[Storage] = []
        self.reserved: list[Reserved] = []
        own = [change for change in changes if change.device >= 0]
        if not own or not ticks_us:
            return
        device = Counter(change.device for change in own).most_common(1)[0][0]
        own = [change for change in own if change.device == device]
        before = own[0].allocated_bytes - own[0].bytes
        alive: dict[int, int] = {}
        sizes: list[int] = []
        births: list[int] = []
        deaths: list[int | None] = []
        # What was held before, and whose blocks are given back under an address not seen here.
        held = max(0, before)
        given_back: list[tuple[int, int]] = []
        reserved = -1
        last = len(ticks_us) - 1
        for change in own:
            tick = max(0, min(last, bisect_left(ticks_us, change.at_us + 1e-9) - 1))
            if change.reserved_bytes != reserved:
                reserved = change.reserved_bytes
                self.reserved.append(Reserved(DEVICE, tick, reserved))
            if change.bytes > 0:
                alive[change.address] = len(sizes)
                sizes.append(change.bytes)
                births.append(tick)
                deaths.append(None)
            elif (row := alive.pop(change.address, None)) is not None:
                deaths[row] = tick
            elif change.bytes < 0:
                given_back.append((tick, -change.bytes))
        for tick, size in given_back:
            size = min(size, held)
            held -= size
            if size:
                self._add(size, 0, tick, EARLIER)
        if held:
            self._add(held, 0, None, EARLIER)
        for size, born, died in zip(sizes, births, deaths, strict=True):
            self._add(size, born, died, "")

    def _add(self, size: int, born: int, died: int | None, name: str) -> None:
        # A block is given back while an operator runs: it is held up to the next one.
        died = None if died is None else max(died, born + 1)
        self.storages.append(Storage(len(self.storages), DEVICE, size, born, died, None, name))


EARLIER = "held before the profiler began"


def step_ends(profile: Profile, ticks_us: Sequence[float]) -> Iterator[int]:
    """Ticks at which the profiler's steps end; without any, those of optimizers' steps."""
    annotations = profile.annotations
    ends_us = [each.end_us for each in annotations if each.name.startswith(STEP)]
    if not ends_us:
        ends_us = last_of_each_update(profile)
    before = 0
    for end_us in sorted(ends_us):
        tick = bisect_left(ticks_us, end_us)
        if tick > before:
            before = tick
            yield tick


def last_of_each_update(profile: Profile) -> list[float]:
    """Ends of optimizers' steps that no other one follows before a backward pass."""
    updates = sorted(
        (each.start_us, each.end_us)
        for each in profile.annotations
        if each.name.startswith(OPTIMIZER_STEP)
    )
    backward_us = sorted(
        each.start_us for each in profile.operators if each.name.startswith(ENGINE)
    )
    ends: list[float] = []
    for place, (_, end_us) in enumerate(updates):
        following = updates[place + 1][0] if place + 1 < len(updates) else math.inf
        passes = bisect_left(backward_us, following) > bisect_left(backward_us, end_us)
        if following == math.inf or passes:
            ends.append(end_us)
    return ends


def shown_operators(profile: Profile) -> list[int]:
    """For each host operator the one of the trace that it is a part of, or is; NOWHERE above it.

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
    return call.literal("unrecorded") is not True and kind_of(call).is_free


def kind_of(call: Call) -> Kind:
    try:
        return cost_of(call)[0]
    except Exception:  # a call whose shapes no rule foresaw; the ledger says so
        return Kind.UNCOUNTED


def moved(call: Call) -> tuple[int, int]:
    try:
        _, cost = cost_of(call)
    except Exception:  # as above
        return 0, 0
    return cost.bytes + cost.flops, 1


def unreplayed(name: str, arguments: Arguments) -> Call:
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
UNRECORDED = (("unrecorded", True),)


def is_plain(value: object) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, tuple) and all(isinstance(each, int) for each in value)


def commonest_float(profile: Profile) -> str:
    """Of the arguments of all operators."""
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

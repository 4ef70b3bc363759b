"""torch.profiler's JSON (Kineto's Chrome trace), of PyTorch 1.8 to today, CUDA, ROCm and the CPU.

A kernel belongs to the host operator in which its launch lies: kernel and launch share a
`correlation`, and the launch lies in operators of its thread by time. "External id" is used where
no launch was recorded, since before 2024 a kernel's is its own correlation.
"""

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from torchtally.errors import TraceFileError
from torchtally.profiles.execution import ExecutionTrace
from torchtally.profiles.nesting import HostEvent, Nested, PythonStacks, nested
from torchtally.profiles.profile import (
    NO_ARGUMENTS,
    NOWHERE,
    Annotation,
    Arguments,
    Collective,
    DeviceActivity,
    HostOperator,
    MemoryChange,
    Profile,
    ProfiledDevice,
    ProfiledGroup,
    RecordedWait,
)
from torchtally.profiles.stream import TraceStream

MADE_BY = "torch.profiler (Kineto)"
FROM_EXECUTION_TRACE = "operators with their arguments from the execution trace"
MOST_EVENTS = 60_000_000

Identity = int | float | str | None
NO_TEXT = msgspec.Raw(b"")


class Args(msgspec.Struct, gc=False):
    """What events say beside their times: of operators, launches, kernels and memory."""

    correlation: int | None = None
    external_id: int | None = msgspec.field(default=None, name="External id")
    record_function: int | None = msgspec.field(default=None, name="Record function id")
    sequence: int | None = msgspec.field(default=None, name="Sequence number")
    forward_thread: int | None = msgspec.field(default=None, name="Fwd thread id")
    dims: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Input Dims")
    dims_before_2022: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Input dims")
    strides: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Input Strides")
    types: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Input type")
    values: msgspec.Raw = msgspec.field(default=NO_TEXT, name="Concrete Inputs")
    device: int | None = None
    stream: int | None = None
    bytes: int | None = None
    block_bytes: int | None = msgspec.field(default=None, name="Bytes")
    address: int | None = msgspec.field(default=None, name="Addr")
    device_kind: int | None = msgspec.field(default=None, name="Device Type")
    device_number: int | None = msgspec.field(default=None, name="Device Id")
    allocated: int | None = msgspec.field(default=None, name="Total Allocated")
    reserved: int | None = msgspec.field(default=None, name="Total Reserved")
    collective: str | None = msgspec.field(default=None, name="Collective name")
    elements_in: int | None = msgspec.field(default=None, name="In msg nelems")
    elements_out: int | None = msgspec.field(default=None, name="Out msg nelems")
    group_size: int | None = msgspec.field(default=None, name="Group size")
    group: str | None = msgspec.field(default=None, name="Process ProfiledGroup Name")
    dtype: str | None = None


class KinetoEvent(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: Identity = None
    tid: Identity = None
    ts: float = 0.0
    dur: float | None = None
    args: Args | None = None


class Head(msgspec.Struct):
    """What is read of a trace beside its events; all else, `metadata` above all, is skipped."""

    devices: Any = msgspec.field(default=None, name="deviceProperties")
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    cuda_runtime_version: Any = None
    cuda_driver_version: Any = None
    hip_runtime_version: Any = None


OPERATOR_CATEGORIES = frozenset(("cpu_op", "Operator"))
CALL_CATEGORIES = frozenset(("cuda_runtime", "cuda_driver", "Runtime", "privateuse1_runtime"))
ACTIVITY_KINDS = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "Memcpy": "memcpy",
    "gpu_memset": "memset",
    "Memset": "memset",
}
WAITS = ("Synchronize", "EventQuery")
GRAPH_LAUNCHES = ("GraphLaunch",)
MEMORY = "[memory]"
DEVICE_TYPE_CPU = 0


class NameNumbers:
    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    @property
    def texts(self) -> list[str]:
        return list(self.numbers)


class Activity(NamedTuple):
    """A kernel, copy or memset as its event says it; numbers that it lacks are -1."""

    name: int
    kind: str
    start_us: float
    duration_us: float
    device: int
    stream: int
    correlation: int
    external_id: int
    bytes: int
    collective: Collective | None


class DeviceLaunch(NamedTuple):
    """A call of CUDA's that starts something on the device."""

    operator: int
    at_us: float
    is_of_graph: bool
    stack: int


NO_LAUNCH = DeviceLaunch(NOWHERE, math.nan, False, NOWHERE)


class Thread:
    """What happened on one thread, as columns. `payload` depends on the kind."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.kinds = array("b")
        self.starts_us = array("d")
        self.ends_us = array("d")
        self.names = array("q")
        self.payloads = array("q")

    def add(self, kind: int, event: KinetoEvent, name: int, payload: int) -> None:
        self.kinds.append(kind)
        self.starts_us.append(event.ts)
        self.ends_us.append(event.ts + (event.dur or 0.0))
        self.names.append(name)
        self.payloads.append(payload)

    def places(self, stacks: PythonStacks) -> Iterator[Nested]:
        return nested(
            np.frombuffer(self.kinds, dtype=np.int8),
            np.frombuffer(self.starts_us),
            np.frombuffer(self.ends_us),
            np.frombuffer(self.names, dtype=np.int64),
            stacks,
        )


class KinetoReader:
    """Collects events; `profile()` puts them together."""

    def __init__(self, path: str, execution: ExecutionTrace | None = None) -> None:
        self.path = path
        self.execution = execution
        self.events = 0
        self.malformed = 0
        self._names = NameNumbers()
        self._threads: dict[tuple[Identity, Identity], Thread] = {}
        self._arguments: dict[tuple[bytes, bytes, bytes, bytes], int] = {(b"", b"", b"", b""): 0}
        self._operators = array("q")
        """(arguments, sequence, forward thread, external id) from an event's payload on."""
        self._calls = array("q")
        """Correlations, by a call's payload."""
        self._memory = array("q")
        """(address, bytes, allocated, reserved, device) from an event's payload on."""
        self._activities: list[Activity] = []
        self._with_strides = False

    # Reading.

    def add(self, events: Iterable[KinetoEvent]) -> None:
        for event in events:
            self.events += 1
            category = event.cat
            if event.ph == "X":
                if not math.isfinite(event.ts) or not math.isfinite(event.dur or 0.0):
                    self.malformed += 1
                    continue
                if category == "python_function":
                    name = self._names.number(event.name)
                    self._thread(event).add(HostEvent.PYTHON, event, name, 0)
                elif category in OPERATOR_CATEGORIES:
                    self._add_operator(event)
                elif category in CALL_CATEGORIES:
                    self._add_call(event)
                elif category in ACTIVITY_KINDS:
                    self._add_activity(event, ACTIVITY_KINDS[category])
                elif category == "user_annotation":
                    name = self._names.number(event.name)
                    self._thread(event).add(HostEvent.ANNOTATION, event, name, 0)
            elif event.ph == "i" and event.name == MEMORY:
                self._add_memory(event)
        if self.events > MOST_EVENTS:
            raise TraceFileError(
                f"{self.path}: more than {MOST_EVENTS} events.\n"
                "Record fewer steps: torch.profiler.schedule(wait=1, warmup=1, active=2)."
            )

    def _thread(self, event: KinetoEvent) -> Thread:
        key = event.pid, event.tid
        thread = self._threads.get(key)
        if thread is None:
            thread = self._threads[key] = Thread(len(self._threads))
        return thread

    def _add_operator(self, event: KinetoEvent) -> None:
        args = event.args or Args()
        name, payload = self._names.number(event.name), len(self._operators)
        self._operators.extend(
            (
                self._arguments_of(args, event.name),
                bounded(-1 if args.sequence is None else args.sequence),
                bounded(args.forward_thread or 0),
                bounded(-1 if args.external_id is None else args.external_id),
            )
        )
        self._thread(event).add(HostEvent.OPERATOR, event, name, payload)

    def _arguments_of(self, args: Args, name: str) -> int:
        if self.execution is not None:
            number = args.record_function or args.external_id
            known = self.execution.arguments(number, name)
            if known is not None and known[0]:
                return self._arguments.setdefault(known, len(self._arguments))
        dims = bytes(args.dims) or bytes(args.dims_before_2022)
        if not dims:
            return 0
        key = (dims, bytes(args.strides), bytes(args.types), bytes(args.values))
        return self._arguments.setdefault(key, len(self._arguments))

    def _add_call(self, event: KinetoEvent) -> None:
        correlation = None if event.args is None else event.args.correlation
        self._calls.append(bounded(-1 if correlation is None else correlation))
        name = self._names.number(event.name)
        self._thread(event).add(HostEvent.CALL, event, name, len(self._calls) - 1)

    def _add_activity(self, event: KinetoEvent, kind: str) -> None:
        if (event.dur or 0.0) < 0:
            self.malformed += 1
            return
        args = event.args or Args()
        self._activities.append(
            Activity(
                self._names.number(event.name),
                kind,
                event.ts,
                event.dur or 0.0,
                args.device if args.device is not None else whole(event.pid),
                args.stream if args.stream is not None else whole(event.tid),
                -1 if args.correlation is None else args.correlation,
                -1 if args.external_id is None else args.external_id,
                args.bytes or 0,
                collective_of(args),
            )
        )

    def _add_memory(self, event: KinetoEvent) -> None:
        args = event.args
        if args is None or args.block_bytes is None or not math.isfinite(event.ts):
            self.malformed += 1
            return
        device = -1 if args.device_kind == DEVICE_TYPE_CPU else (args.device_number or 0)
        payload = len(self._memory)
        sizes = (args.block_bytes, args.allocated or 0, args.reserved or 0, device)
        self._memory.extend(map(bounded, (args.address or 0, *sizes)))
        self._thread(event).add(HostEvent.INSTANT, event, 0, payload)

    # Putting together.

    def profile(self, heads: Sequence[Head], unreadable: int) -> Profile:
        names = self._names.texts
        stacks = PythonStacks()
        operators: list[HostOperator] = []
        annotations: list[Annotation] = []
        memory: list[MemoryChange] = []
        waits: list[RecordedWait] = []
        launches: dict[int, DeviceLaunch] = {}
        """By correlation."""
        by_external_id: dict[int, int] = {}
        for thread in self._threads.values():
            operator_of: dict[int, int] = {}
            annotation_of: dict[int, int] = {}
            for place in thread.places(stacks):
                event = place.event
                kind, payload = thread.kinds[event], thread.payloads[event]
                start_us, end_us = thread.starts_us[event], thread.ends_us[event]
                name = names[thread.names[event]] if names else ""
                operator = operator_of.get(place.operator, NOWHERE)
                annotation = annotation_of.get(place.annotation, NOWHERE)
                if kind == HostEvent.OPERATOR:
                    called_with, sequence, forward_thread, external_id = self._operators[
                        payload : payload + 4
                    ]
                    operator_of[event] = len(operators)
                    if external_id >= 0:
                        by_external_id[external_id] = len(operators)
                    operators.append(
                        HostOperator(
                            name,
                            called_with,
                            thread.number,
                            start_us,
                            end_us,
                            operator,
                            place.stack,
                            sequence,
                            forward_thread,
                            annotation,
                        )
                    )
                elif kind == HostEvent.CALL:
                    correlation = self._calls[payload]
                    is_graph = name.endswith(GRAPH_LAUNCHES)
                    if correlation >= 0:
                        launches.setdefault(
                            correlation, DeviceLaunch(operator, start_us, is_graph, place.stack)
                        )
                    if any(wait in name for wait in WAITS):
                        waits.append(RecordedWait(name, start_us, end_us, operator))
                elif kind == HostEvent.ANNOTATION:
                    annotation_of[event] = len(annotations)
                    annotations.append(
                        Annotation(name, thread.number, start_us, end_us, annotation)
                    )
                else:
                    memory.append(
                        MemoryChange._make(
                            (
                                start_us,
                                thread.number,
                                *self._memory[payload : payload + 5],
                                operator,
                            )
                        )
                    )
        memory.sort(key=lambda change: change.at_us)
        waits.sort(key=lambda wait: wait.start_us)
        arguments = tuple(map(decoded, self._arguments))
        has_strides = any(each.strides is not None for each in arguments[1:])
        is_recent = has_strides and self.execution is None
        activities = list(self._linked(names, launches, by_external_id if is_recent else {}))
        activities.sort(key=lambda activity: activity.start_us)
        head = merged(heads)
        return Profile(
            file=self.path,
            made_by=MADE_BY,
            devices=devices_of(head.devices),
            **distributed_of(head.distributed),
            operators=tuple(operators),
            arguments=arguments,
            stacks=stacks.table(names),
            annotations=tuple(annotations),
            activities=tuple(activities),
            memory=tuple(memory),
            waits=tuple(waits),
            has_shapes=len(arguments) > 1,
            has_strides=has_strides,
            has_stacks=any(operator.stack != NOWHERE for operator in operators),
            events=self.events,
            unreadable=unreadable + self.malformed,
            facts=facts_of(head),
        )

    def _linked(
        self,
        names: Sequence[str],
        launches: dict[int, DeviceLaunch],
        by_external_id: dict[int, int],
    ) -> Iterator[DeviceActivity]:
        for row in self._activities:
            launch = launches.get(row.correlation, NO_LAUNCH) if row.correlation >= 0 else NO_LAUNCH
            operator = launch.operator
            if operator == NOWHERE:
                operator = by_external_id.get(row.external_id, NOWHERE)
            yield DeviceActivity(
                names[row.name],
                row.kind,
                row.start_us,
                row.duration_us,
                row.device,
                row.stream,
                operator,
                launch.at_us,
                launch.is_of_graph,
                row.bytes,
                launch.stack,
                row.collective,
            )


def read_kineto(path: str, execution: ExecutionTrace | None = None) -> Profile:
    """The profile in a file of `export_chrome_trace`, plain or gzipped, read chunk by chunk.
    Arguments are those of the execution trace of the same run, where it has the operator.

    Raises TraceFileError for a file that cannot be read, that is damaged, or that holds nothing
    a profiler records.
    """
    stream = TraceStream(path, KinetoEvent, Head)
    reader = KinetoReader(path, execution)
    for events in stream.chunks():
        reader.add(events)
    profile = reader.profile(stream.heads, stream.unreadable)
    if not profile.operators and not profile.activities:
        raise TraceFileError(
            f"{path}: no operator and no kernel is in it ({reader.events} events).\n"
            "Was anything run within the profiler's steps? `tally explain --record` shows how to "
            "record."
        )
    if execution is None:
        return profile
    if not execution.joined:
        raise TraceFileError(
            f"{execution.path}: none of its calls is in {path}.\n"
            "Record both in the same run: the observer beside the profiler."
        )
    return replace(profile, notes=((FROM_EXECUTION_TRACE, execution.joined),))


def decoded(key: tuple[bytes, bytes, bytes, bytes]) -> Arguments:
    if not key[0]:
        return NO_ARGUMENTS
    dims, strides, types, values = (json_of(part) for part in key)
    shapes = nested_ints(dims)
    if shapes is None:
        return NO_ARGUMENTS
    count = len(shapes)
    kinds = tuple(map(str, types)) if isinstance(types, list) else ()
    texts = tuple(map(str, values)) if isinstance(values, list) else None
    return Arguments(
        shapes,
        fitting(nested_ints(strides), count),
        kinds if len(kinds) == count else ("",) * count,
        fitting(texts, count),
    )


def fitting(values: tuple[Any, ...] | None, count: int) -> tuple[Any, ...] | None:
    return values if values is not None and len(values) == count else None


def json_of(text: bytes) -> object:
    try:
        return msgspec.json.decode(text) if text else None
    except (msgspec.DecodeError, RecursionError):
        return None


def nested_ints(value: object) -> tuple[Any, ...] | None:
    """Lists as tuples; None for anything but lists of ints, of lists of ints, of strings."""
    if not isinstance(value, list):
        return None
    parts: list[Any] = []
    for part in value:
        if isinstance(part, list):
            inner = nested_ints(part)
            if inner is None:
                return None
            parts.append(inner)
        elif isinstance(part, int) and not isinstance(part, bool) and 0 <= part < 1 << 62:
            parts.append(part)
        else:
            return None
    return tuple(parts)


def bounded(value: int) -> int:
    """A number of 64 bits: none of a profiler's is larger."""
    return max(-1 << 62, min(value, 1 << 62))


def whole(value: Identity) -> int:
    return value if isinstance(value, int) else 0


def collective_of(args: Args) -> Collective | None:
    if not args.collective:
        return None
    return Collective(
        args.collective,
        args.elements_in or 0,
        args.elements_out or 0,
        args.dtype or "",
        args.group_size or 0,
        args.group or "",
    )


def merged(heads: Sequence[Head]) -> Head:
    """What stands before the events, and behind them where that says more."""
    values: dict[str, Any] = {}
    for head in heads:
        for field in Head.__struct_fields__:
            value = getattr(head, field)
            if value is not None:
                values[field] = value
    return Head(**values)


def devices_of(value: object) -> tuple[ProfiledDevice, ...]:
    rows = [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
    return tuple(
        ProfiledDevice(
            int_of(row.get("id")),
            str(row.get("name", ""))[:200],
            int_of(row.get("totalGlobalMem")),
            int_of(row.get("numSms")),
        )
        for row in rows
    )


def distributed_of(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    rank, size = int_of(value.get("rank")), int_of(value.get("world_size"))
    groups = value.get("pg_config")
    return {
        "rank": rank,
        "world_size": max(size, rank + 1),
        "groups": tuple(
            ProfiledGroup(
                str(group.get("pg_name", "")),
                str(group.get("pg_desc", "")),
                tuple(int_of(member) for member in list_of(group.get("ranks"))),
            )
            for group in list_of(groups)
            if isinstance(group, dict)
        ),
    }


def list_of(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def int_of(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else 0


def facts_of(head: Head) -> dict[str, str]:
    named = ("cuda_runtime_version", "cuda_driver_version", "hip_runtime_version")
    versions = {name: getattr(head, name) for name in named}
    return {name: str(value)[:40] for name, value in versions.items() if isinstance(value, int)}

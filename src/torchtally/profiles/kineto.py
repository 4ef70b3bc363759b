"""torch.profiler's JSON (Kineto's Chrome trace), of PyTorch 1.8 to today, CUDA, ROCm and the CPU.

A kernel belongs to the host operator in which its launch lies: kernel and launch share a
`correlation`, and the launch lies in operators of its thread by time. "External id" is used where
no launch was recorded, since before 2024 a kernel's is its own correlation.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import msgspec

from torchtally.errors import TraceFileError
from torchtally.profiles.arguments import decode
from torchtally.profiles.assembly import Activity, Assembly, NameNumbers, Thread
from torchtally.profiles.execution import ExecutionTrace
from torchtally.profiles.heads import Head, devices_of, distributed_info, facts_of, merge
from torchtally.profiles.nesting import HostEvent
from torchtally.profiles.profile import NOWHERE, Collective, Profile
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
    group: str | None = msgspec.field(default=None, name="Process Group Name")
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
MEMORY = "[memory]"
DEVICE_TYPE_CPU = 0


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
        """`OPERATOR_COLUMNS` for each."""
        self._calls = array("q")
        """Correlations, by a call's payload."""
        self._memory = array("q")
        """`MEMORY_COLUMNS` for each."""
        self._activities: list[Activity] = []
        self._with_strides = False

    # Reading.

    def add(self, events: Iterable[KinetoEvent]) -> None:
        for event in events:
            self.events += 1
            category = event.cat
            if event.ph == "X":
                if not is_time(event.ts) or not is_time(event.dur or 0.0):
                    self.malformed += 1
                    continue
                if category == "python_function":
                    name = self._names.number(event.name)
                    self._put(HostEvent.PYTHON, event, name, 0)
                elif category in OPERATOR_CATEGORIES:
                    self._add_operator(event)
                elif category in CALL_CATEGORIES:
                    self._add_call(event)
                elif category in ACTIVITY_KINDS:
                    self._add_activity(event, ACTIVITY_KINDS[category])
                elif category == "user_annotation":
                    name = self._names.number(event.name)
                    self._put(HostEvent.ANNOTATION, event, name, 0)
            elif event.ph == "i" and event.name == MEMORY:
                self._add_memory(event)
        if self.events > MOST_EVENTS:
            raise TraceFileError(
                f"{self.path}: more than {MOST_EVENTS} events.\n"
                "Record fewer steps: torch.profiler.schedule(wait=1, warmup=1, active=2)."
            )

    def _put(self, kind: int, event: KinetoEvent, name: int, payload: int) -> None:
        key = event.pid, event.tid
        thread = self._threads.get(key)
        if thread is None:
            thread = self._threads[key] = Thread(len(self._threads))
        thread.add(kind, event.ts, event.dur or 0.0, name, payload)

    def _add_operator(self, event: KinetoEvent) -> None:
        args = event.args or Args()
        name, payload = self._names.number(event.name), len(self._operators)
        self._operators.extend(
            (
                self._arguments_of(args, event.name),
                limit_to_64_bits(-1 if args.sequence is None else args.sequence),
                limit_to_64_bits(args.forward_thread or 0),
                limit_to_64_bits(-1 if args.external_id is None else args.external_id),
            )
        )
        self._put(HostEvent.OPERATOR, event, name, payload)

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
        self._calls.append(limit_to_64_bits(-1 if correlation is None else correlation))
        name = self._names.number(event.name)
        self._put(HostEvent.CALL, event, name, len(self._calls) - 1)

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
        if args is None or args.block_bytes is None or not is_time(event.ts):
            self.malformed += 1
            return
        device = -1 if args.device_kind == DEVICE_TYPE_CPU else (args.device_number or 0)
        payload = len(self._memory)
        sizes = (args.block_bytes, args.allocated or 0, args.reserved or 0, device)
        self._memory.extend(map(limit_to_64_bits, (args.address or 0, *sizes)))
        self._put(HostEvent.INSTANT, event, 0, payload)

    def profile(self, heads: Sequence[Head], unreadable: int) -> Profile:
        assembly = Assembly(self._names.texts, self._operators, self._calls, self._memory)
        for thread in self._threads.values():
            assembly.add(thread)
        arguments = tuple(map(decode, self._arguments))
        has_strides = any(each.strides is not None for each in arguments[1:])
        # Before 2024 a kernel's "External id" is its own correlation.
        is_recent = has_strides and self.execution is None
        activities = assembly.link(self._activities, by_external_id=is_recent)
        head = merge(heads)
        return Profile(
            file=self.path,
            made_by=MADE_BY,
            devices=devices_of(head.devices),
            **distributed_info(head.distributed),
            operators=tuple(assembly.operators),
            arguments=arguments,
            stacks=assembly.stacks.table(assembly.names),
            annotations=tuple(assembly.annotations),
            activities=tuple(sorted(activities, key=lambda activity: activity.start_us)),
            memory=tuple(sorted(assembly.memory, key=lambda change: change.at_us)),
            waits=tuple(sorted(assembly.waits, key=lambda wait: wait.start_us)),
            has_shapes=len(arguments) > 1,
            has_strides=has_strides,
            has_stacks=any(operator.stack != NOWHERE for operator in assembly.operators),
            events=self.events,
            unreadable=unreadable + self.malformed,
            facts=facts_of(head),
        )


def read_kineto(
    path: str,
    execution: ExecutionTrace | None = None,
    on_read: Callable[[float], None] = lambda share: None,
) -> Profile:
    """The profile in a file of `export_chrome_trace`, plain or gzipped, read chunk by chunk.
    Arguments are those of the execution trace of the same run, where it has the operator.
    `on_read` is told which share of the file has been read.

    Raises TraceFileError for a file that cannot be read, that is damaged, or that holds nothing
    a profiler records.
    """
    stream = TraceStream(path, KinetoEvent, Head)
    reader = KinetoReader(path, execution)
    for events in stream.chunks():
        reader.add(events)
        on_read(stream.share)
    profile = reader.profile(stream.heads, stream.unreadable)
    if not profile.operators and not profile.activities:
        raise TraceFileError(
            f"{path}: contains no operators or kernels ({reader.events} events).\n"
            "Was anything run within the profiler's steps? `tally explain --record` shows how "
            "to record."
        )
    if execution is None:
        return profile
    if not execution.joined:
        raise TraceFileError(
            f"{execution.path}: none of its calls appear in {path}.\n"
            "Record both in the same run: the observer beside the profiler."
        )
    return replace(profile, notes=((FROM_EXECUTION_TRACE, execution.joined),))


def limit_to_64_bits(value: int) -> int:
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


LATEST_US = 9.2e15
"""Microseconds since 1970 whose nanoseconds 64 bits hold: until 2261."""


def is_time(us: float) -> bool:
    """Whether it is one that a profiler can have written: finite, and no further away."""
    return abs(us) < LATEST_US

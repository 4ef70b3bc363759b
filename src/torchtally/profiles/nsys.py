"""Nsight Systems' exports: SQLite, and a folder with a Parquet file for each table.

Tables are those of NVIDIA's "SQLite Export Schema Reference". An export has the tables that
something was recorded for, and versions differ in their columns: what is there is read. Times are
nanoseconds. Rows become the events that Kineto writes for the same, and are linked alike.

Known limits. Of NVTX ranges those of push and pop are read, which lie within one another; ranges of
start and end cross threads and each other. `torch.autograd.profiler.emit_nvtx(record_shapes=True)`
names operators and sizes, no dtypes; sizes of a list's tensors stand among those of the arguments.
"""

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

import msgspec

from torchtally.errors import TraceFileError
from torchtally.files.reading import open_at_once
from torchtally.profiles.arguments import nested_ints
from torchtally.profiles.kineto import NO_TEXT, Args, KinetoEvent, KinetoReader
from torchtally.profiles.profile import ANY_ARGUMENT, ANY_TENSOR, LeftOut, Profile, ProfiledDevice

MADE_BY = "Nsight Systems"
REPORTS = (".nsys-rep", ".qdrep")
"""NVIDIA's own form, which is not documented."""
MAGIC = b"SQLite format 3\0"
MOST_TEXT_BYTES = 16 << 20
MOST_STRINGS = 20_000_000
PUSH_POP_RANGE = 59
"""NVTX_EVENTS.eventType, as the schema reference lists them."""
IN_OTHER_PROCESSES = "in other processes of the report"

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
"""Whole CUDA graphs, where their kernels were not recorded one by one."""
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
RANGES = "NVTX_EVENTS"
STRINGS = "StringIds"
GPUS = "TARGET_INFO_GPU"
CUDA_DEVICES = "TARGET_INFO_CUDA_DEVICE"

COPY_KINDS = {
    0: "unknown", 1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA",
    8: "DtoD", 9: "HtoH", 10: "PtoP",
}  # fmt: skip
"""CUpti_ActivityMemcpyKind."""
VERSION = re.compile(r"_v\d+(_ptsz|_ptds)?$")
"""Behind a call's name: "cudaLaunchKernel_v7000"."""
THREAD_BITS = 24
"""Of a global thread id; the process stands above it in as many."""

HOW = (
    "nsys profile --trace=cuda,nvtx -o report python train.py; "
    "nsys export --type sqlite report.nsys-rep"
)


class Tables(Protocol):
    """An export's tables, in whatever form."""

    def names(self) -> frozenset[str]: ...

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """None for a column that the table lacks; nothing of a table that is not there."""
        ...


class SqliteTables:
    """Nothing of the file is run: views, virtual tables and generated columns are not read."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        self._names = frozenset(
            name for name, sql in rows if str(sql).lstrip().upper().startswith("CREATE TABLE")
        )

    def names(self) -> frozenset[str]:
        return self._names

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        if table not in self._names:
            return iter(())
        # Its second column is a name; generated columns are not among them.
        known = {row[1] for row in self._connection.execute(f"PRAGMA table_info('{table}')")}
        parts = [f'"{column}"' if column in known else "NULL" for column in columns]
        return iter(self._connection.execute(f'SELECT {", ".join(parts)} FROM "{table}"'))


class ParquetTables:
    """`nsys export --type parquetdir`: TABLE.parquet in a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._names = frozenset(
            name.removesuffix(".parquet")
            for name in os.listdir(folder)
            if name.endswith(".parquet")
        )

    def names(self) -> frozenset[str]:
        return self._names

    def rows(self, table: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        from pyarrow import parquet  # type: ignore[import-untyped]

        if table not in self._names:
            return
        with parquet.ParquetFile(os.path.join(self._folder, f"{table}.parquet")) as file:
            known = [column for column in columns if column in file.schema_arrow.names]
            for batch in file.iter_batches(columns=known):
                values = {column: batch.column(column).to_pylist() for column in known}
                nothing = [None] * batch.num_rows
                yield from zip(*(values.get(column, nothing) for column in columns), strict=True)


class Process(NamedTuple):
    """Process of a global id: the machine's and the process's bits. NO_PROCESS where none is
    recorded.
    """

    number: int

    @property
    def pid(self) -> int:
        return self.number & ((1 << THREAD_BITS) - 1)


NO_PROCESS = Process(-1)


class Busy(NamedTuple):
    """What of a process ran on devices."""

    activities: int
    duration_ns: int


class NsysReader:
    """One export, read table by table."""

    def __init__(self, path: str, tables: Tables) -> None:
        self.path = path
        self.tables = tables
        self.unreadable = 0
        self._strings: dict[int, str] = {}
        self._types: dict[str, bytes] = {}

    def profile(self) -> Profile:
        if not self.tables.names() & {KERNELS, GRAPHS, COPIES, SETS, CALLS, RANGES}:
            raise TraceFileError(
                f"{self.path}: contains no tables of Nsight Systems.\nExport a report: {HOW}"
            )
        self._read_strings()
        device_numbers = self._device_numbers()
        busy = self._busy_by_process()
        process = max(busy, key=lambda each: busy[each].duration_ns, default=NO_PROCESS)
        reader = KinetoReader(self.path)
        reader.add(self._work(process, device_numbers))
        reader.add(self._host_events(process))
        profile = reader.profile([], self.unreadable)
        if not profile.operators and not profile.activities:
            raise TraceFileError(
                f"{self.path}: contains no kernels or operators.\nRecord CUDA and NVTX: {HOW}"
            )
        others = [part for each, part in busy.items() if each != process]
        left_out = (
            LeftOut(
                IN_OTHER_PROCESSES,
                sum(part.activities for part in others),
                sum(part.duration_ns for part in others) / 1e3,
            ),
        )
        return replace(
            profile,
            made_by=MADE_BY,
            devices=tuple(self._devices()),
            left_out=left_out if others else (),
        )

    # Names and devices.

    def _read_strings(self) -> None:
        for number, text in self.tables.rows(STRINGS, ("id", "value")):
            if isinstance(number, int) and isinstance(text, str):
                self._strings[number] = text
            if len(self._strings) > MOST_STRINGS:
                raise TraceFileError(
                    f"{self.path}: more than {MOST_STRINGS} strings.\nRecord a shorter time."
                )

    def _text(self, *values: object) -> str:
        """The first that is a text, or the number of one."""
        for value in values:
            text = value if isinstance(value, str) else self._string(value)
            if text:
                return text
        return ""

    def _string(self, value: object) -> str:
        return self._strings.get(value, "") if isinstance(value, int) else ""

    def _devices(self) -> Iterator[ProfiledDevice]:
        columns = ("id", "name", "totalMemory", "smCount")
        for number, name, memory, multiprocessors in self.tables.rows(GPUS, columns):
            yield ProfiledDevice(
                count(number), self._text(name)[:200], count(memory), count(multiprocessors)
            )

    def _device_numbers(self) -> dict[tuple[int, int], int]:
        """The GPU by process and CUDA's number of the device in it."""
        columns = ("pid", "cudaId", "gpuId")
        return {
            (count(pid), count(cuda)): count(gpu)
            for pid, cuda, gpu in self.tables.rows(CUDA_DEVICES, columns)
            if gpu is not None
        }

    # The device.

    def _busy_by_process(self) -> dict[Process, Busy]:
        busy: dict[Process, Busy] = {}
        for table in (KERNELS, GRAPHS, COPIES, SETS):
            for start, end, global_pid in self.tables.rows(table, ("start", "end", "globalPid")):
                if is_time(start) and is_time(end) and end >= start:
                    process = process_of(global_pid)
                    activities, duration_ns = busy.get(process, (0, 0))
                    busy[process] = Busy(activities + 1, duration_ns + end - start)
        return busy

    def _work(
        self, own: Process, device_numbers: dict[tuple[int, int], int]
    ) -> Iterator[KinetoEvent]:
        where = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId")
        names = ("demangledName", "shortName", "mangledName")
        for table, category, more in (
            (KERNELS, "kernel", names),
            (GRAPHS, "kernel", ()),
            (COPIES, "gpu_memcpy", ("copyKind", "bytes")),
            (SETS, "gpu_memset", ("value", "bytes")),
        ):
            for row in self.tables.rows(table, (*where, *more)):
                start, end, global_pid, device, stream, correlation = row[: len(where)]
                if not (is_time(start) and is_time(end) and end >= start):
                    self.unreadable += 1
                    continue
                process = process_of(global_pid)
                if process != own:
                    continue
                device = count(device)
                rest = row[len(where) :]
                yield KinetoEvent(
                    ph="X",
                    cat=category,
                    name=self._name(table, rest),
                    pid=process.number,
                    tid=count(stream),
                    ts=start / 1e3,
                    dur=(end - start) / 1e3,
                    args=Args(
                        correlation=correlation if is_time(correlation) else None,
                        device=device_numbers.get((process.pid, device), device),
                        stream=count(stream),
                        bytes=count(rest[1]) if table in (COPIES, SETS) else None,
                    ),
                )

    def _name(self, table: str, row: Sequence[object]) -> str:
        if table == KERNELS:
            return self._text(*row) or "unnamed"
        if table == GRAPHS:
            return "CUDA graph"
        if table == COPIES:
            return f"Memcpy {COPY_KINDS.get(count(row[0]), COPY_KINDS[0])}"
        return "Memset (Device)"

    # The host.

    def _host_events(self, process: Process) -> Iterator[KinetoEvent]:
        for start, end, thread, correlation, name in self.tables.rows(
            CALLS, ("start", "end", "globalTid", "correlationId", "nameId")
        ):
            if self._is_host_event(start, end, thread, process):
                called = VERSION.sub("", self._text(name)[:400])
                link = Args(correlation=correlation if is_time(correlation) else None)
                yield host_event("cuda_runtime", called, start, end, thread, link)
        columns = ("start", "end", "globalTid", "eventType", "text", "textId")
        for start, end, thread, kind, text, number in self.tables.rows(RANGES, columns):
            if kind not in (None, PUSH_POP_RANGE) or end is None:
                continue
            if self._is_host_event(start, end, thread, process):
                name, args = self._range(self._text(text, number))
                category = "user_annotation" if args is None else "cpu_op"
                yield host_event(category, name, start, end, thread, args)

    def _is_host_event(self, start: object, end: object, thread: object, own: Process) -> bool:
        """Whether it is of this process; a row that is no event is counted."""
        if not (is_time(start) and is_time(end) and is_time(thread)):
            self.unreadable += 1
            return False
        return own == NO_PROCESS or process_of(thread) == own

    def _range(self, text: str) -> tuple[str, Args | None]:
        """What a range is called, and of an operator what it says beside its name.

        PyTorch's are "aten::mm, seq = 4, op_id = 12, sizes = [[2, 3], [3, 4]], input_op_ids = ..."
        with what is known (getNvtxStr in torch/csrc/profiler/util.cpp).
        """
        head, _, _ = text.partition(", input_op_ids = ")
        head, _, sizes = head.partition(", sizes = ")
        head, _, _ = head.partition(", op_id = ")
        name, _, sequence = head.partition(", seq = ")
        has_sequence = sequence.isascii() and sequence.isdigit() and len(sequence) < 19
        if "::" not in name and not has_sequence:
            return name, None
        types = self._types_of(sizes)
        return name, Args(
            sequence=int(sequence) if has_sequence else None,
            dims=msgspec.Raw(sizes.encode() if types else b""),
            types=msgspec.Raw(types) if types else NO_TEXT,
        )

    def _types_of(self, sizes: str) -> bytes:
        """Flags in place of types: whether an argument is a tensor, as far as sizes tell. b"": no
        sizes
        """
        types = self._types.get(sizes)
        if types is None:
            try:
                shapes = nested_ints(msgspec.json.decode(sizes)) if sizes else None
            except (msgspec.DecodeError, RecursionError):
                shapes = None
            types = self._types[sizes] = (
                b""
                if shapes is None
                else msgspec.json.encode([ANY_TENSOR if each else ANY_ARGUMENT for each in shapes])
            )
        return types


def read_nsys(path: str) -> Profile:
    """The profile of the busiest process in an export: a SQLite file or a folder of Parquet files.

    Raises TraceFileError for what cannot be read, or holds nothing that ran.
    """
    if path.endswith(REPORTS):
        raise TraceFileError(
            f"{path}: a native report of Nsight Systems.\n"
            f"Export it, and give the exported file: nsys export --type sqlite {path}"
        )
    try:
        if os.path.isdir(path):
            return read_parquet(path)
        # "immutable" leaves the file and its folder alone: no journal, no lock.
        name = f"file:{quote(os.path.abspath(path))}?mode=ro&immutable=1"
        with closing(sqlite3.connect(name, uri=True)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_TEXT_BYTES)
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            return NsysReader(path, SqliteTables(connection)).profile()
    # Python decodes what SQLite says of a damaged schema, with its text, as UTF-8.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise damage_error(path, error) from None
    except OSError as error:
        raise TraceFileError(f"{path}: cannot be read ({error.strerror or error}).") from error


def read_parquet(folder: str) -> Profile:
    try:
        from pyarrow import ArrowException
    except ImportError:
        raise TraceFileError(
            f"{folder}: Parquet files are read by pyarrow, which is not installed.\n"
            "Install it: pip install 'torchtally[parquet]'; or export with --type sqlite."
        ) from None
    try:
        return NsysReader(folder, ParquetTables(folder)).profile()
    except (ArrowException, ValueError) as error:
        raise damage_error(folder, error) from None


def damage_error(path: str, error: Exception) -> TraceFileError:
    why = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return TraceFileError(
        f"{path}: the export is damaged or cut short ({why}).\nExport it again: {HOW}"
    )


def is_nsys(path: str) -> bool:
    """Whether it is an export or a report, by its first bytes or by names. False for what cannot be
    read: who reads it says why.
    """
    if path.endswith(REPORTS):
        return True
    try:
        if os.path.isdir(path):
            return any(name.endswith(".parquet") for name in os.listdir(path))
        with open(path, "rb", opener=open_at_once) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def process_of(global_id: object) -> Process:
    return Process(global_id >> THREAD_BITS) if isinstance(global_id, int) else NO_PROCESS


def host_event(
    category: str, name: str, start: int, end: int, thread: int, args: Args | None
) -> KinetoEvent:
    return KinetoEvent(
        ph="X",
        cat=category,
        name=name,
        pid=thread >> THREAD_BITS,
        tid=thread,
        ts=start / 1e3,
        dur=(end - start) / 1e3,
        args=args,
    )


def is_time(value: object) -> bool:
    return isinstance(value, int) and -1 << 62 < value < 1 << 63


def count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else 0

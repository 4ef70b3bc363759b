"""The allocator's history, in a pickle of `torch.cuda.memory._dump_snapshot` that is not run.

A pickle is a program. This one is made of dictionaries, lists, texts and numbers alone, so every
instruction that would import or call something is refused.
"""

import io
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torchtally.errors import TraceFileError
from torchtally.files.reading import open_at_once, read_bytes

MOST_BYTES = 4 << 30
MAGIC = b"\x80"
"""With which pickles of protocol 2 and later begin; torch's are of protocol 2 or later."""
ACTIONS = frozenset(
    """
    alloc free free_requested free_completed segment_alloc segment_free segment_map segment_unmap
    oom snapshot
    """.split()
)


class StackFrame(NamedTuple):
    """A frame of the stack of an allocation."""

    file: str
    line: int
    function: str


class AllocatorEvent(NamedTuple):
    action: str
    address: int
    bytes: int
    """As requested, for a tensor; of a segment its whole size."""
    stream: int
    frames: tuple[StackFrame, ...]
    """Innermost first."""


class HeldBlock(NamedTuple):
    """A block that was in use when the snapshot was taken."""

    address: int
    bytes: int
    """As the allocator counts it."""
    requested_bytes: int
    stream: int
    frames: tuple[StackFrame, ...]


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """One device's history, and what it held at the end of it."""

    file: str
    device: int
    events: tuple[AllocatorEvent, ...]
    held: tuple[HeldBlock, ...]
    reserved_bytes: int
    """At the end."""
    settings: str
    """PYTORCH_CUDA_ALLOC_CONF."""

    @property
    def allocated_bytes(self) -> int:
        """Bytes allocated at the end."""
        return sum(block.bytes for block in self.held)


LEAST_ROOM_BYTES, ROOM_OF_CONTENT = 1 << 29, 100
"""What unpickling may take: an event of 20 bytes becomes a dict of 400. Eight bytes of a pickle can
ask for a table of 2**32 pointers.
"""


@contextmanager
def limited_memory(room_bytes: int) -> Iterator[None]:
    """Context in which the process can take so much more memory, where the system limits it
    (Linux).
    """
    try:
        import resource

        size_pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (ImportError, OSError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [size_pages * resource.getpagesize() + room_bytes, soft, hard]
    least = min(limit for limit in limits if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_AS, (least, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class _Plain(pickle.Unpickler):
    """Only what needs no import."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it would import {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to what is outside of it")


def is_pickle(path: str) -> bool:
    """Whether it is a pickle, by its first byte. False for a file that cannot be read: the reader
    says why.
    """
    try:
        with open(path, "rb", opener=open_at_once) as file:
            return file.read(1) == MAGIC
    except OSError:
        return False


def read_snapshot(path: str) -> MemorySnapshot:
    """The history of the device on which most happened. Raises TraceFileError for another file."""
    try:
        content = read_bytes(path, MOST_BYTES)
        with limited_memory(LEAST_ROOM_BYTES + ROOM_OF_CONTENT * len(content)):
            document = _Plain(io.BytesIO(content)).load()
    except FileNotFoundError:
        raise TraceFileError(f"{path}: no such file.") from None
    except OSError as error:
        raise TraceFileError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except Exception as error:  # a damaged pickle raises nearly anything
        raise _not_one(path, str(error) or type(error).__name__) from None
    if not isinstance(document, dict) or not isinstance(document.get("segments"), list):
        raise _not_one(path, "it has no segments")
    try:
        return _snapshot(path, document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _not_one(path, f"{type(error).__name__}: {error}") from None


def _not_one(path: str, why: str) -> TraceFileError:
    return TraceFileError(
        f"{path}: not a memory snapshot of PyTorch's ({why[:200]}).\n"
        "One is what torch.cuda.memory._dump_snapshot(FILE) writes, after "
        "torch.cuda.memory._record_memory_history()."
    )


class SharedStacks:
    """SharedStacks of a document, which has most of them several times: each is one object."""

    def __init__(self) -> None:
        self._frames: dict[int, StackFrame | None] = {}
        """By the id of its row, which the document keeps."""
        self._stacks: dict[tuple[int, ...], tuple[StackFrame, ...]] = {}

    def of(self, rows: Any) -> tuple[StackFrame, ...]:
        key = tuple(map(id, rows or ()))
        stack = self._stacks.get(key)
        if stack is None:
            frames = map(self._frame, rows or ())
            stack = self._stacks[key] = tuple(frame for frame in frames if frame is not None)
        return stack

    def _frame(self, row: Mapping[str, Any]) -> StackFrame | None:
        if id(row) not in self._frames:
            file = str(row["filename"])
            is_known = file and file != "??"
            frame = StackFrame(file, int(row["line"]), str(row["name"])) if is_known else None
            self._frames[id(row)] = frame
        return self._frames[id(row)]


def _snapshot(path: str, document: Mapping[str, Any]) -> MemorySnapshot:
    traces = document.get("device_traces") or []
    segments = document["segments"]
    sizes = [len(trace) for trace in traces]
    devices = {int(segment.get("device", 0)) for segment in segments}
    device = sizes.index(max(sizes)) if any(sizes) else min(devices, default=0)
    own = [segment for segment in segments if int(segment.get("device", 0)) == device]
    settings, stacks = document.get("allocator_settings") or {}, SharedStacks()
    return MemorySnapshot(
        file=path,
        device=device,
        events=tuple(_events(traces[device] if device < len(traces) else [], stacks)),
        held=tuple(_blocks_held(own, stacks)),
        reserved_bytes=sum(count(segment["total_size"]) for segment in own),
        settings=str(settings.get("PYTORCH_CUDA_ALLOC_CONF", "") or "")
        if isinstance(settings, dict)
        else "",
    )


def _events(rows: list[Mapping[str, Any]], stacks: SharedStacks) -> Iterator[AllocatorEvent]:
    for row in rows:
        action = str(row["action"])
        if action not in ACTIONS:
            raise ValueError(f"an event {action[:40]!r}")
        if action in ("oom", "snapshot"):
            continue
        yield AllocatorEvent(
            action,
            int(row.get("addr", 0)),
            count(row["size"]),
            int(row.get("stream", 0)),
            stacks.of(row.get("frames")),
        )


def _blocks_held(segments: list[Mapping[str, Any]], stacks: SharedStacks) -> Iterator[HeldBlock]:
    for segment in segments:
        address = int(segment.get("address", 0))
        for block in segment["blocks"]:
            size = count(block["size"])
            if str(block["state"]).startswith("active"):
                yield HeldBlock(
                    int(block.get("address", address)),
                    size,
                    count(block.get("requested_size", size)),
                    int(segment.get("stream", 0)),
                    stacks.of(block.get("frames")),
                )
            address += size


def count(value: Any) -> int:
    number = int(value)
    if not 0 <= number < 1 << 60:
        raise ValueError(f"a size of {number} bytes")
    return number

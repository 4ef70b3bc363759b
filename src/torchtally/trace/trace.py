"""The record of one run: operators, storages and steps on one logical clock.

The clock ticks once per operator on the device. Everything else (a storage's birth and death, the
end of a training step) is placed on it, so two facts can always be ordered.
"""

from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from torchtally.table.shown import Browsable
from torchtally.trace.checks import (
    check_calls,
    check_numbers,
    check_ops,
    check_steps,
    check_storages,
    check_ticks,
)
from torchtally.trace.effect import Effect
from torchtally.trace.file import (
    Path,
    collection_paused,
    read_body,
    refuse_as_corrupted,
    write_body,
)
from torchtally.trace.loading import BatchLoading
from torchtally.trace.measured import Measured
from torchtally.trace.op import Call, Frame, Op, Site
from torchtally.trace.ranks import Coalesced, ProcessGroup, StreamWait, World
from torchtally.trace.record import Count, Index, Record, Tick
from torchtally.trace.script_work import ScriptWork
from torchtally.trace.storage import Storage


class Use(StrEnum):
    """What a script does with a value that it reads."""

    EXIT = "exit"
    """It leaves a loop, a function or itself because of it."""
    BRANCH = "branch"
    """A condition depends on it, so the run may take another way than on the real device."""
    NUMBER = "number"
    PRINT = "print"


class Placeholder(Record, frozen=True):
    """A value that the script reads from a virtual tensor, and the substitute it was given."""

    frame: Frame | None
    op: str
    """The operator that asked ("aten._local_scalar_dense", "aten.nonzero")."""
    given: str
    """As text: "1.0", "False", "4096 of 4096 elements selected", "assumed: balanced routing"."""
    count: Count
    use: Use = Use.NUMBER

    @property
    def is_assumption(self) -> bool:
        """A choice was assumed for the value, in place of a fixed substitute."""
        return self.given.startswith("assumed:")


class Note(Record, frozen=True):
    """Difference of the run from one on the real device; shown in every report."""

    text: str
    count: Count = 1


class Ending(Record, frozen=True):
    """How the run ended.

    "steps" (as many as asked for), "exit", "exception", "interrupted" or "time" (--max-seconds);
    "running" in the trace so far of a run that goes on.
    """

    kind: str
    message: str = ""
    """The exception's last line, or the signal's name."""


class Reserved(Record, frozen=True):
    """Bytes in segments that the allocator of a device holds from a tick on."""

    device: str
    tick: Tick
    bytes: Count


class CacheEmptied(Record, frozen=True):
    """The script gave the allocator's free segments back (`torch.cuda.empty_cache`)."""

    device: str
    tick: Tick


class Refusal(Record, frozen=True):
    """A request that raised out of memory. The script may have caught the error and continued."""

    device: str
    tick: Tick
    """The tick of the op that would have run."""
    requested_bytes: Count
    """As asked for, before any rounding."""
    allocated_bytes: Count
    reserved_bytes: Count
    free_bytes: Count
    """Of the device, at that moment."""
    site: Index
    """Number of the site the op belongs to; a backward op belongs to its forward line."""
    message: str
    """The message of torch.OutOfMemoryError."""
    builds_graph: bool = True
    """Autograd recorded what ran at that moment: no `torch.no_grad`, no inference mode."""


class HostState(Record, frozen=True):
    """What optimizers step on the host, where the script has put it."""

    elements: Count
    """Of parameters, on this rank."""
    whole_elements: Count
    """Of the same parameters on all ranks that share them."""
    parameter_bytes: Count
    gradient_bytes: Count
    optimizer_bytes: Count

    @property
    def bytes(self) -> int:
        return self.parameter_bytes + self.gradient_bytes + self.optimizer_bytes


class Trace(Browsable, msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All facts of one run. Immutable; written and read without torch."""

    script: str
    """The command that was traced, script and arguments, as a person would type it."""
    chip: str
    """Name of the simulated chip, as the hardware table spells it."""
    torch_version: str
    calls: tuple[Call, ...]
    """The distinct calls; an op names its own by number."""
    sites: tuple[Site, ...]
    """The distinct places that ops belong to; an op names its own by number."""
    ops: tuple[Op, ...]
    storages: tuple[Storage, ...]
    """`storages[n].number == n`."""
    step_ends: tuple[Tick, ...]
    """For each completed training step, the tick before which it ended (one past its last op)."""
    ending: Ending
    differentiated: tuple[Tick, ...] = ()
    """Ticks of the operators whose autograd nodes a backward pass has run, in order, each once."""
    placeholders: tuple[Placeholder, ...] = ()
    notes: tuple[Note, ...] = ()
    reserved: tuple[Reserved, ...] = ()
    """Every change, in order."""
    emptied: tuple[CacheEmptied, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    waits: tuple[Tick, ...] = ()
    """Ticks at which the host waited for the device, in order, each once.

    Every op of a smaller tick was done before the op of this tick could be issued. The host waits
    when it synchronises, reads a value (`.item()`), copies without `non_blocking`, learns a shape
    that depends on values, or gives memory back to the driver. A wait for a single event or stream
    is recorded as a wait for all of them, which is the same for a run on one stream.
    """
    allocator_settings: str = ""
    """The value of PYTORCH_CUDA_ALLOC_CONF."""
    host_ops: Count = 0
    """Operators that ran on the host only: not accounted, but counted."""
    host_state: HostState | None = None
    facts: dict[str, str] = {}
    """Free-form provenance: python, platform, date; `cwd`, the directory it was run in; `files`,
    the folder of an isolated run's files; `loop`, its training loop (trace/loop.py)."""
    effects: tuple[Effect, ...] = ()
    loading: tuple[BatchLoading, ...] = ()
    """Of each DataLoader that the script iterated over, as far as it was measured."""
    script_work: tuple[ScriptWork, ...] = ()
    """In order, as measured between operators."""
    world: World = World()
    groups: tuple[ProcessGroup, ...] = ()
    """Process groups of the traced rank."""
    stream_waits: tuple[StreamWait, ...] = ()
    """In the order in which they were made."""
    coalesced: tuple[Coalesced, ...] = ()
    """In order; none overlaps another."""
    peers: tuple[Count, ...] = ()
    """Ranks of the world that ran with this one, each with a trace of its own."""
    measured: Measured | None = None
    """Of a run that a profiler recorded: when its kernels ran. Tensors have no storages then."""

    @property
    def end(self) -> int:
        """One past the last tick."""
        return self.ops[-1].clock + 1 if self.ops else 0

    @property
    def final_refusal(self) -> Refusal | None:
        """The refused request that ended the run; None where the script continued."""
        error = self.ending.message.partition(":")[0]
        ran_out = self.ending.kind == "exception" and error.endswith("OutOfMemoryError")
        return self.refusals[-1] if ran_out and self.refusals else None

    @property
    def steady_step(self) -> tuple[int, int]:
        """Ticks [first, end) of the last completed step, the whole trace when none completed."""
        if not self.step_ends:
            return 0, self.end
        first = self.step_ends[-2] if len(self.step_ends) > 1 else 0
        return first, self.step_ends[-1]

    def save(self, path: Path) -> None:
        """Write the trace to a file, whole or not at all: an older file there stays until then.

        Raises OutputError when the file cannot be written.
        """
        with collection_paused():
            body = encode(pack(self))
        write_body(body, path)

    @classmethod
    def load(cls, path: Path) -> "Trace":
        """The trace in a file. Raises TraceFileError unless the file is a whole trace."""
        body = read_body(path)
        with refuse_as_corrupted(path), collection_paused():
            return unpack(msgspec.msgpack.decode(body, type=Packed))

    def __repr__(self) -> str:
        return (
            f"<Trace of {self.script!r} on {self.chip}: {len(self.ops)} ops, "
            f"{len(self.step_ends)} steps, {len(self.storages)} storages>"
        )


class Packed(Record, frozen=True):
    """A trace as it is in the file: the frames that its sites share are stored once."""

    trace: Trace
    """Without its sites."""
    frames: tuple[Frame, ...]
    sites: tuple[tuple[str, str, tuple[Index, ...]], ...]
    """(module, its class, numbers of the frames)."""


def pack(trace: Trace) -> Packed:
    numbers: dict[Frame, int] = {}
    sites = tuple(
        (
            site.module,
            site.module_class,
            tuple(numbers.setdefault(frame, len(numbers)) for frame in site.frames),
        )
        for site in trace.sites
    )
    return Packed(replace(trace, sites=()), tuple(numbers), sites)


def unpack(packed: Packed) -> Trace:
    """Raises InvalidTraceError where the tables contradict each other."""
    trace, frames = packed.trace, packed.frames
    check_calls(trace.calls)
    check_ops(trace.ops, trace.calls, len(packed.sites), len(trace.storages))
    check_storages(trace.storages)
    check_steps(trace.step_ends)
    check_ticks(trace.waits, "at which the host waited")
    check_ticks(trace.differentiated, "whose autograd nodes ran")
    if trace.measured is not None:
        kernels = trace.measured.kernels
        check_numbers([kernel.op for kernel in kernels], len(trace.ops), "operator")
        check_numbers([kernel.name for kernel in kernels], len(trace.measured.names), "kernel name")
    check_numbers([refusal.site for refusal in trace.refusals], len(packed.sites), "site")
    for _, _, numbers in packed.sites:
        check_numbers(numbers, len(frames), "frame")
    return replace(
        trace,
        sites=tuple(
            Site(module, module_class, tuple(frames[number] for number in numbers))
            for module, module_class, numbers in packed.sites
        ),
    )


def encode(packed: Packed) -> bytes:
    r"""Bytes as msgpack; lone surrogates (a file name that is not UTF-8) as the text ``\udcff``."""
    try:
        return msgspec.msgpack.encode(packed)
    except UnicodeEncodeError:
        return msgspec.msgpack.encode(_spelled_out(msgspec.to_builtins(packed)))


def _spelled_out(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode("utf-8")
        case list() | tuple():
            return [_spelled_out(each) for each in value]
        case dict():
            return {_spelled_out(key): _spelled_out(each) for key, each in value.items()}
    return value

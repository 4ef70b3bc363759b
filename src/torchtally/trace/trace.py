"""The record of one run: operators, storages and steps on one logical clock.

The clock ticks once per operator on the device. Everything else (a storage's birth and death, the
end of a training step) is placed on it, so two facts can always be ordered.
"""

from dataclasses import dataclass, field

from torchtally.trace.op import Frame, Op, Site
from torchtally.trace.storage import Storage


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A value the script asked for that no virtual tensor has, and what it was given instead."""

    frame: Frame | None
    op: str
    """The operator that asked ("aten._local_scalar_dense", "aten.nonzero")."""
    given: str
    """What it got, in words: "1.0", "False", "at most 4096 rows", "balanced indices"."""
    count: int


@dataclass(frozen=True, slots=True)
class Note:
    """Something the run did otherwise than the real device would; shown in every report."""

    text: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Ending:
    """How the run ended.

    "steps" (as many as asked for), "exit", "exception", "interrupted" or "time" (--max-seconds);
    "running" in the trace so far of a run that goes on.
    """

    kind: str
    message: str = ""
    """The exception's last line, or the signal's name."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """From a tick on, the allocator of a device holds so many bytes in segments."""

    device: str
    tick: int
    bytes: int


@dataclass(frozen=True, slots=True)
class CacheEmptied:
    """The script gave the allocator's free segments back (`torch.cuda.empty_cache`)."""

    device: str
    tick: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request for memory that nothing could satisfy. The script may have gone on."""

    device: str
    tick: int
    """The tick of the op that would have run."""
    requested_bytes: int
    """As asked for, before any rounding."""
    allocated_bytes: int
    reserved_bytes: int
    free_bytes: int
    """Of the device, at that moment."""
    site: Site
    """Where the op belongs; a backward op belongs to its forward line."""
    message: str
    """What torch.OutOfMemoryError said."""


@dataclass(frozen=True, slots=True)
class Trace:
    """All facts of one run. Immutable; `record.file` writes and reads it without torch."""

    script: str
    """The command that was traced, script and arguments, as a person would type it."""
    chip: str
    """Name of the simulated chip, as the hardware table spells it."""
    torch_version: str
    ops: tuple[Op, ...]
    storages: tuple[Storage, ...]
    """`storages[n].number == n`."""
    step_ends: tuple[int, ...]
    """For each completed training step, the tick before which it ended (one past its last op)."""
    ending: Ending
    placeholders: tuple[Placeholder, ...] = ()
    notes: tuple[Note, ...] = ()
    reserved: tuple[Reserved, ...] = ()
    """Every change, in order."""
    emptied: tuple[CacheEmptied, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    waits: tuple[int, ...] = ()
    """Ticks at which the host waited for the device, in order, each once.

    Every op of a smaller tick was done before the op of this tick could be issued. The host waits
    when it synchronises, reads a value (`.item()`), copies without `non_blocking`, learns a shape
    that depends on values, or gives memory back to the driver. One that waits for a single event
    or stream is recorded as one that waits for all: a run on one stream has no difference.
    """
    allocator_settings: str = ""
    """The value of PYTORCH_CUDA_ALLOC_CONF."""
    host_ops: int = 0
    """Operators that ran on the host only: not accounted, but counted."""
    facts: dict[str, str] = field(default_factory=dict)
    """Free-form provenance: python, platform, date."""

    @property
    def end(self) -> int:
        """One past the last tick."""
        return self.ops[-1].clock + 1 if self.ops else 0

    @property
    def final_refusal(self) -> Refusal | None:
        """The refused request that ended the run; None where the script found a way to go on."""
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

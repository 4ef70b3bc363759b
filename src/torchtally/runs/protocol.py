"""What a supervised child is asked to do and what it answers: typed records, checked on arrival.

Requests and answers are msgpack in files of the run's folder (`REQUEST`, `ANSWER`): the script has
stdin, stdout and stderr, and its arguments may be longer than a command line. No torch.
"""

from pathlib import Path
from typing import TypeVar

import msgspec

from torchtally.options.simulation import Network, Writes
from torchtally.runs.allocations import Allocations
from torchtally.trace import World

REQUEST, ANSWER, OUTPUT, WRITTEN = "request", "answer", "output", "written"
"""Files in a run's folder."""

T = TypeVar("T")


class ProbeRequest(msgspec.Struct, frozen=True, kw_only=True, tag="probe"):
    """Run a script on a simulated GPU and report the memory it needs."""

    script: str
    arguments: tuple[str, ...]
    is_module: bool
    gpu: str
    steps: int
    world: World = World()
    """The script is run as one of so many ranks."""
    variables: tuple[tuple[str, str], ...] = ()
    """Of the environment, besides what torchrun sets."""
    text: str | None = None
    """The source itself, of a script without a file."""
    max_seconds: float | None = None
    nonzero_fraction: float = 1.0
    placeholder_limit: int | None = None
    """Placeholders that one condition may read between two steps; None: as `tally run` has it."""
    folds: bool = True
    what_ifs: tuple[str, ...] = ()
    """Changes to try, in the syntax of `tally run --what-if`."""
    allocator_settings: str | None = None
    """For PYTORCH_CUDA_ALLOC_CONF; None leaves it unchanged."""
    writes: Writes = "isolated"
    network: Network = "downloads"
    targets: tuple[str, ...] = ()
    """Of other chips whose operators are compared with this run's."""
    capacities: tuple[tuple[int, int], ...] = ()
    """(capacity, total memory of the device) in bytes: each gets a verdict."""


class MeasureRequest(msgspec.Struct, frozen=True, kw_only=True, tag="measure"):
    """Run a script for a few training steps and measure its memory."""

    script: str
    arguments: tuple[str, ...]
    is_module: bool
    steps: int
    gpu: str | None = None
    """The chip to simulate; None: this machine's GPU."""
    writes: Writes = "isolated"
    network: Network = "downloads"
    """Of a simulated run; one on this machine's GPU writes for real."""


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True, tag="trace"):
    """Run a script on a simulated GPU, and save the trace of it."""

    script: str
    arguments: tuple[str, ...]
    is_module: bool
    gpu: str
    steps: int
    place: str
    """The file of the trace."""
    world: World = World()
    variables: tuple[tuple[str, str], ...] = ()
    text: str | None = None
    max_seconds: float | None = None
    what_ifs: tuple[str, ...] = ()
    writes: Writes = "isolated"
    network: Network = "downloads"


class DeviceRequest(msgspec.Struct, frozen=True, tag="device"):
    """Name this machine's GPU."""


class ModuleRequest(msgspec.Struct, frozen=True, kw_only=True, tag="module"):
    """Run a module as `python -m` does. It answers nothing but its exit code."""

    module: str
    arguments: tuple[str, ...]


Request = ProbeRequest | TraceRequest | MeasureRequest | DeviceRequest | ModuleRequest


class CapacityVerdict(msgspec.Struct, frozen=True):
    """Whether a run fits one capacity.

    Of a run that does not, the reserved peak is that on about the smallest device that it fits.
    """

    fits: bool
    peak_allocated_bytes: int
    peak_reserved_bytes: int


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The memory that one run needed."""

    ending: str
    """As `trace.Ending.kind`; "killed" for a process that ended without an answer."""
    message: str
    steps: int = 0
    peak_allocated_bytes: int = 0
    """With unlimited memory, as `peak_reserved_bytes`."""
    peak_reserved_bytes: int = 0
    folded: int = 0
    """Forward passes that repeated earlier ones and were not executed."""
    verdicts: tuple[CapacityVerdict, ...] = ()
    """One per capacity, in the request's order."""
    allocations: Allocations = Allocations((), ())
    alike: frozenset[str] = frozenset()
    """Compilers' targets ("sm_90") on which the same operators would have run."""
    questions: tuple[str, ...] = ()
    """Properties of the chip that the script asked for and that differ between chips."""
    caveats: tuple[str, ...] = ()
    """What it rests on, where the run was not the one that was asked for."""
    output: str = ""
    """The last lines of what the script printed."""
    wall_s: float = 0.0

    @property
    def failure(self) -> str:
        """Why the script failed, other than by memory; "" where it did not."""
        if self.ending in ("steps", "exit") and not self.message.startswith("sys.exit("):
            return ""
        return self.message or self.ending


class TraceResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended whose trace is in its file."""

    ending: str
    message: str

    @property
    def failure(self) -> str:
        """Why the script failed; "" where it did not."""
        return "" if self.ending in ("steps", "exit") else self.message or self.ending


class Device(msgspec.Struct, frozen=True):
    """A GPU as torch sees it; without a name where torch sees none."""

    name: str
    total_memory_bytes: int
    remark: str = ""
    """What torch printed."""


def write(path: Path, record: object) -> None:
    """Write a request or an answer, whole or not at all."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_bytes(msgspec.msgpack.encode(record))
    unfinished.replace(path)


def read(path: Path, kind: type[T]) -> T:
    """Raises OSError or msgspec.MsgspecError."""
    return msgspec.msgpack.decode(path.read_bytes(), type=kind)


def read_request(folder: Path) -> Request:
    """Raises OSError or msgspec.MsgspecError."""
    request: Request = msgspec.msgpack.decode((folder / REQUEST).read_bytes(), type=Request)
    return request

"""One process as a profiler saw it: host operators, what the GPU ran, memory, steps.

Times are microseconds on the profiler's own clock, one clock for host and device.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

NOWHERE = -1
"""In place of a number: no parent, no stack, no operator."""
DEVICE = "cuda:0"
"""The device of a profile, as its trace calls it."""


class Arguments(NamedTuple):
    """What an operator was called with, as far as it was recorded: one entry per argument."""

    shapes: tuple[object, ...] | None
    """A tuple of ints for a tensor, a tuple of those for a list of tensors, () for anything else.
    None: the profiler was run without `record_shapes`."""
    strides: tuple[object, ...] | None
    """In the same form. None before PyTorch 2.1."""
    types: tuple[str, ...]
    """As C++ spells them: "c10::BFloat16", "TensorList", "Scalar", "". An execution trace tells the
    types of a list's tensors, too: "TensorList[float,float]"."""
    values: tuple[str, ...] | None
    """Of arguments that are not tensors, as text. None before PyTorch 2.1."""


NO_ARGUMENTS = Arguments(None, None, (), None)

ANY_TENSOR = "a tensor"
"""In place of a type: a tensor with dimensions, its dtype not recorded."""
ANY_ARGUMENT = "an argument"
"""In place of a type: a number, a tensor without dimensions, nothing: not recorded which."""


class HostOperator(NamedTuple):
    """An operator, or a part of the autograd engine, on a thread of the host."""

    name: str
    """"aten::mm"."""
    arguments: int
    """Its number in `Profile.arguments`."""
    thread: int
    start_us: float
    end_us: float
    parent: int
    """The operator of this thread that it ran within, by its number; or NOWHERE."""
    stack: int
    """Its number in `Profile.stacks`; or NOWHERE."""
    sequence: int
    """Of the autograd node that a forward operator made, or that a backward operator runs; -1."""
    forward_thread: int
    """Of a backward operator: the thread that ran the forward one, as autograd numbers threads;
    0 of a forward operator."""
    annotation: int
    """The innermost `record_function` around it, by its number in `Profile.annotations`."""


class Stack(NamedTuple):
    """A Python function or module call on the stack, and the stack below it by its number."""

    parent: int
    name: str
    """"train.py(12): main" or "nn.Module: Linear_3"."""


class Annotation(NamedTuple):
    """A `record_function` of the script, of an optimizer or of the profiler."""

    name: str
    thread: int
    start_us: float
    end_us: float
    parent: int


class Collective(NamedTuple):
    """What a kernel of a communication library says of itself."""

    name: str
    """"allreduce"."""
    elements_in: int
    elements_out: int
    dtype: str
    group_size: int
    group: str
    """Its process group's name."""


class DeviceActivity(NamedTuple):
    """A kernel, a copy or a memset on a device."""

    name: str
    kind: str
    """"kernel", "memcpy" or "memset"."""
    start_us: float
    duration_us: float
    device: int
    stream: int
    operator: int
    """The host operator that launched it, by its number; or NOWHERE."""
    launched_us: float
    """When the host began to launch it; nan where the launch was not recorded."""
    is_in_graph: bool
    """Launched as a part of a CUDA graph."""
    bytes: int
    """Of a copy or memset."""
    stack: int = NOWHERE
    """Of the launch."""
    collective: Collective | None = None
    annotation: int = NOWHERE
    """The innermost `record_function` around the launch."""

    @property
    def end_us(self) -> float:
        return self.start_us + self.duration_us


class MemoryChange(NamedTuple):
    """A block that the allocator gave out or took back."""

    at_us: float
    thread: int
    address: int
    bytes: int
    """Negative where it was taken back."""
    allocated_bytes: int
    """Of the device, afterwards."""
    reserved_bytes: int
    device: int
    """-1: the host."""
    operator: int
    """The host operator within which it happened; or NOWHERE."""


class RecordedWait(NamedTuple):
    """The host waited for the device: cudaStreamSynchronize and its like."""

    name: str
    start_us: float
    end_us: float
    operator: int


class LeftOut(NamedTuple):
    """What ran on devices and is in the file, but not in the profile."""

    reason: str
    activities: int
    duration_us: float


@dataclass(frozen=True, slots=True)
class ProfiledDevice:
    """A GPU as its driver describes it."""

    number: int
    name: str
    memory_bytes: int
    multiprocessors: int


@dataclass(frozen=True, slots=True)
class ProfiledGroup:
    """A process group that the trace names."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """All that is kept of a profiler's file. Environment and other metadata are not."""

    file: str
    made_by: str
    """"torch.profiler (Kineto)"."""
    devices: tuple[ProfiledDevice, ...] = ()
    rank: int = 0
    world_size: int = 1
    groups: tuple[ProfiledGroup, ...] = ()
    operators: tuple[HostOperator, ...] = ()
    """By thread, and within a thread by their beginning."""
    arguments: tuple[Arguments, ...] = (NO_ARGUMENTS,)
    stacks: tuple[Stack, ...] = ()
    annotations: tuple[Annotation, ...] = ()
    activities: tuple[DeviceActivity, ...] = ()
    """By their beginning."""
    memory: tuple[MemoryChange, ...] = ()
    """By time."""
    waits: tuple[RecordedWait, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[tuple[str, int], ...] = ()
    """What to know of the profile, each with how often it is so."""
    has_shapes: bool = False
    has_strides: bool = False
    has_stacks: bool = False
    events: int = 0
    """In the file."""
    unreadable: int = 0
    """Of them, not of the form that the profiler writes: left out."""
    facts: dict[str, str] = field(default_factory=dict)
    """Versions that the profiler itself names: "cuda_runtime_version"."""

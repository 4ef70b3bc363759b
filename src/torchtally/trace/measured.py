"""What a profiler measured of a run that happened: kernels by the operator that launched them."""

from torchtally.trace.record import Count, Index, Record

UNKNOWN_NS = -1
NOT_COUNTED = "not counted: "
"""With what notes begin that say why operators were not counted."""


class MeasuredKernel(Record, frozen=True):
    """A kernel, copy or memset on a device; on a machine without one, an operator on its CPU."""

    name: Index
    """Its number in `Measured.names`."""
    op: Index
    """Place in `Trace.ops` of the operator that launched it."""
    stream: int
    """As the device numbers them; on a CPU, the thread."""
    start_ns: Count
    """Since the first one of the trace began."""
    duration_ns: Count
    launched_ns: int = UNKNOWN_NS
    """When the host began to launch it; UNKNOWN_NS where that is unknown or before the first one
    began."""
    is_in_graph: bool = False
    """Launched with others as a CUDA graph."""

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns


class LostTime(Record, frozen=True):
    """Device time of the file that belongs to no operator of the trace."""

    reason: str
    kernels: Count
    duration_ns: Count

    @property
    def seconds(self) -> float:
        return self.duration_ns * 1e-9


class Measured(Record, frozen=True):
    """The times of a trace that was not simulated."""

    made_by: str
    """"torch.profiler (Kineto)"."""
    file: str
    """Name of the profiler's file, without its folder."""
    names: tuple[str, ...]
    """Of kernels, each once."""
    kernels: tuple[MeasuredKernel, ...]
    """By their beginning."""
    lost: tuple[LostTime, ...] = ()
    is_on_host: bool = False
    """Operators ran on a CPU."""
    has_shapes: bool = True
    """False: nothing is known of what operators were called with."""
    has_lines: bool = True
    """False: it is not known which code called an operator."""
    has_memory: bool = True
    """False: what was allocated is not known."""
    host_waits: tuple[tuple[Count, Count], ...] = ()
    """(beginning, end) of each wait of the host for the device, in nanoseconds."""

    @property
    def device_ns(self) -> int:
        """Nanoseconds of all kernels in the file, those of no operator included."""
        own = sum(kernel.duration_ns for kernel in self.kernels)
        return own + sum(part.duration_ns for part in self.lost)

    @property
    def device_s(self) -> float:
        return self.device_ns * 1e-9

"""Streams and events of the virtual GPU, where operators of a stream complete in order of issue.

One stream is current per thread and device. An event remembers its stream, and how many operators
were issued before it; who waits for it waits for those of that stream. The time
between two events is predicted by the session's stopwatch, if it has one; it is never the host's.
"""

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from torchtally.errors import UnsupportedError
from torchtally.virtual.shown_devices import as_device

_numbers = itertools.count(1)
_event_numbers = itertools.count(1)

POOL_STREAMS = 32
"""torch hands out this many streams of a device in turn (c10/cuda/CUDAStream.cpp)."""


class Stream:
    """Stands for `torch.cuda.Stream` and `torch.Stream`."""

    device_type = 1  # c10::DeviceType::CUDA

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        index = as_device(device)
        self.device = torch.device("cuda", (index.index if index else None) or 0)
        self.device_index = self.device.index
        self.priority = priority
        number = kwargs.get("stream_id")
        self.stream_id = 1 + next(_numbers) % POOL_STREAMS if number is None else number
        self.cuda_stream = self.stream_id

    def wait_event(self, event: "Event") -> None:
        event.wait(self)

    def wait_stream(self, stream: "Stream") -> None:
        self.wait_event(stream.record_event())

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = event or Event()
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (
            (self.device, self.stream_id) == (other.device, other.stream_id)
        )

    def __hash__(self) -> int:
        return hash((self.device, self.stream_id))

    def __enter__(self) -> "Stream":
        CURRENT.entered.append(CURRENT.stream)
        CURRENT.stream = self
        return self

    def __exit__(self, *exc: object) -> None:
        CURRENT.stream = CURRENT.entered.pop()

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


DEFAULT_STREAM_ID = 0


class Current(threading.local):
    """The current stream of each thread."""

    def __init__(self) -> None:
        self.stream = Stream(stream_id=DEFAULT_STREAM_ID)
        self.entered: list[Stream] = []
        """The streams that were current before those entered by `with`, outermost first."""


CURRENT = Current()


def current_stream_number() -> int:
    number: int = CURRENT.stream.stream_id
    return number


Stopwatch = Callable[[int, int], float]
"""Predicted seconds from a tick of the trace's clock to a later one."""


@dataclass(frozen=True, slots=True, eq=False)
class EventClock:
    """Issue counts and predicted times, for the events of a session."""

    tick: Callable[[], int]
    """How many operators were issued so far."""
    stopwatch: Stopwatch | None = None
    wait: Callable[[int, int, int], None] = lambda stream, other, until: None
    """A stream waits for another's operators of smaller ticks."""

    def elapsed_s(self, start: int, end: int) -> float:
        """Negative, as CUDA's own, where the end was recorded before the start."""
        if self.stopwatch is None:
            raise UnsupportedError(
                "the time between two CUDA events needs a prediction, which is not available "
                "here.\n"
                "Trace the script: torchtally.run(...) or `tally run`."
            )
        if end < start:
            return -self.stopwatch(end, start)
        return self.stopwatch(start, end)


class Event:
    """Stands for `torch.cuda.Event` and `torch.Event`."""

    clock: ClassVar[EventClock | None] = None
    """The session's: one per process, set while it is active."""

    def __init__(self, *args: Any, enable_timing: bool = False, **kwargs: Any) -> None:
        self.device = torch.device("cuda", 0)
        self.enable_timing = enable_timing or bool(args and args[0] is True)
        self.cuda_event = next(_event_numbers)
        self._recorded: tuple[EventClock, int] | None = None
        """The clock and its tick: events of two sessions have no time between them."""
        self._stream = DEFAULT_STREAM_ID

    def record(self, stream: Stream | None = None) -> None:
        if Event.clock is not None:
            self._recorded = (Event.clock, Event.clock.tick())
            self._stream = (stream or CURRENT.stream).stream_id

    def wait(self, stream: Stream | None = None) -> None:
        """Waits; for an event that was never recorded nothing waits (cudaStreamWaitEvent)."""
        if self._recorded is not None:
            clock, tick = self._recorded
            clock.wait((stream or CURRENT.stream).stream_id, self._stream, tick)

    def synchronize(self) -> None:
        if self._recorded is not None:
            torch.cuda.synchronize(self.device)

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: "Event") -> float:
        """Predicted milliseconds. Errors are those of ATen/cuda/CUDAEvent.h."""
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        start, end = self._recorded, end_event._recorded
        if start is None or end is None or start[0] is not end[0]:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return start[0].elapsed_s(start[1], end[1]) * 1e3


class StreamContext:
    """Context `with torch.cuda.stream(s):`, where s may be None."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *exc: object) -> None:
        if self.stream is not None:
            self.stream.__exit__()

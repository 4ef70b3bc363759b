"""Times of steps and peaks of memory, read without making the device or the host wait."""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

MOST_PENDING = 256
"""Steps that a host may be ahead of its device. Older ones are waited for."""


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """The most bytes so far, of a device whose allocator counts them."""

    peak_bytes: int | None = None
    reserved_bytes: int | None = None


class StepStopwatch(Protocol):
    """Told of every step's end."""

    def mark(self) -> None:
        """A step ends here, or the first begins."""

    def seconds(self) -> Iterator[float]:
        """Seconds of steps whose time became known, in order."""

    def memory(self) -> MeasuredMemory:
        """Peaks of the process so far; torch's own, which stay the script's to reset."""


class HostStopwatch:
    """Stopwatch by the host's clock. Such a device has no allocator that could be asked."""

    def __init__(self, clock: Any = time.perf_counter) -> None:
        self._clock = clock
        self._last_s: float | None = None
        self._known: deque[float] = deque()

    def mark(self) -> None:
        now_s = self._clock()
        if self._last_s is not None:
            self._known.append(now_s - self._last_s)
        self._last_s = now_s

    def seconds(self) -> Iterator[float]:
        while self._known:
            yield self._known.popleft()

    def memory(self) -> MeasuredMemory:
        return MeasuredMemory()


class CudaStopwatch:
    """Stopwatch by events on the current stream: from the end of a step's work to the end of the
    next's.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pending: deque[Any] = deque()
        self._free: list[Any] = []

    def mark(self) -> None:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        self._pending.append(event)

    def seconds(self) -> Iterator[float]:
        pending = self._pending
        while len(pending) > 1:
            if len(pending) > MOST_PENDING:
                pending[1].synchronize()
            elif not pending[1].query():
                return
            begin = pending.popleft()
            yield begin.elapsed_time(pending[0]) / 1e3
            self._free.append(begin)

    def memory(self) -> MeasuredMemory:
        return MeasuredMemory(
            torch.cuda.max_memory_allocated(self._device),
            torch.cuda.max_memory_reserved(self._device),
        )


def stopwatch_of(device: torch.device) -> StepStopwatch:
    return CudaStopwatch(device) if device.type == "cuda" else HostStopwatch()


def device_in_use(model: torch.nn.Module | None) -> torch.device:
    """That of the model; without one a GPU on which something is allocated, else the host."""
    parameter = None if model is None else next(model.parameters(), None)
    if parameter is not None:
        return parameter.device
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        device = torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.memory_allocated(device):
            return device
    return torch.device("cpu")

"""Times of steps and peaks of memory, read without making the device or the host wait."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

MOST_PENDING = 256
"""Steps that a host may be ahead of its device. Older ones are waited for."""
Peaks = tuple[int | None, int | None]
"""The most bytes allocated and reserved so far; None of a device whose allocator counts none."""


class HostStopwatch:
    """Stopwatch by the host's clock. Such a device has no allocator that could be asked."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last_s: float | None = None

    def mark(self) -> list[float]:
        """A step ends here, or the first begins: seconds of the one that ends."""
        last_s, self._last_s = self._last_s, self._clock()
        return [] if last_s is None else [self._last_s - last_s]

    def peaks(self) -> Peaks:
        return None, None


class CudaStopwatch:
    """Stopwatch by events on the current stream: from the end of a step's work to the end of the
    next's.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pending: deque[Any] = deque()
        self._free: list[Any] = []

    def mark(self) -> list[float]:
        """A step ends here: seconds of steps whose time became known, in order."""
        pending, times_s = self._pending, []
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        pending.append(event)
        while len(pending) > MOST_PENDING or (len(pending) > 1 and pending[1].query()):
            if len(pending) > MOST_PENDING:
                pending[1].synchronize()
            begin = pending.popleft()
            times_s.append(begin.elapsed_time(pending[0]) / 1e3)
            self._free.append(begin)
        return times_s

    def peaks(self) -> Peaks:
        """Peaks of the process so far; torch's own, which stay the script's to reset."""
        device = self._device
        return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)


def stopwatch_of(device: torch.device) -> HostStopwatch | CudaStopwatch:
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

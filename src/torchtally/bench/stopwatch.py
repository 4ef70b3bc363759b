"""How long a piece of work takes on a device, by itself."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from torchtally import torch_private as private

Clock = Callable[[], float]
Work = Callable[[], Any]

WARM_UPS = 2
LEAST = 3
"""Repetitions, however long one takes."""
MOST = 100
SHORT_S = 50e-6
"""Work shorter than this is timed many at once: the clock's own cost would show."""
LONGEST_QUEUE = 100
"""Kernels given to a GPU at once, which waits until the host has issued them all; its queue holds
1024, and a full one makes the host wait."""
STABLE = 0.01
"""How far the last two queues may be apart for there to be no third."""


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Times work on one device. The clock is given, so that a test can hold it."""

    device: torch.device
    budget_s: float = 0.02
    """For one measurement, beyond its warm-up; a piece that takes longer is run LEAST times, on a
    GPU twice where that is enough."""
    clock: Clock = field(default=time.perf_counter)

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    def seconds(self, work: Work) -> float:
        """The undisturbed time of one run, the device doing nothing else.

        On a GPU the runs stand in a queue behind one another, so the host's part is not in it.
        """
        for _ in range(WARM_UPS):
            work()
        return self._on_gpu(work) if self.is_gpu else self._on_host(work)

    def host_seconds(self, work: Work) -> float:
        """The undisturbed time until `work` returns: on a GPU what the host takes to issue it."""
        for _ in range(WARM_UPS):
            work()
        return self._on_host(work)

    def _on_host(self, work: Work) -> float:
        once_s = self._elapsed_s(work, 1)
        at_once = max(1, min(MOST, round(SHORT_S / max(once_s, 1e-7))))
        times = max(LEAST, min(MOST, round(self.budget_s / max(once_s * at_once, 1e-7))))
        return undisturbed_s(self._elapsed_s(work, at_once) / at_once for _ in range(times))

    def _elapsed_s(self, work: Work, times: int) -> float:
        self.wait()
        started_s = self.clock()
        for _ in range(times):
            work()
        return self.clock() - started_s

    def _on_gpu(self, work: Work) -> float:
        once_s = self._queued_s(work, 1)
        times = max(1, min(LONGEST_QUEUE, round(self.budget_s / LEAST / max(once_s, 1e-7))))
        times_s: list[float] = []
        while len(times_s) < LEAST and not is_stable(times_s):
            times_s.append(self._queued_s(work, times) / times)
        return undisturbed_s(times_s)

    def _queued_s(self, work: Work, times: int) -> float:
        """Device time of so many runs, all of them issued before the first one begins."""
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.wait()
        private.sleep_on_gpu(SLEEP_CYCLES_PER_RUN * (times + 10))
        begun.record()
        for _ in range(times):
            work()
        ended.record()
        self.wait()
        milliseconds: float = begun.elapsed_time(ended)
        return milliseconds / 1e3

    def wait(self) -> None:
        """Waits until the device has done all it was given."""
        if self.is_gpu:
            torch.cuda.synchronize(self.device)


SLEEP_CYCLES_PER_RUN = 40_000
"""About 20 us of a GPU's clock: longer than the host takes to issue one operator."""


def is_stable(times_s: Sequence[float]) -> bool:
    if len(times_s) < 2:
        return False
    before_s, last_s = times_s[-2:]
    return abs(last_s - before_s) <= STABLE * before_s


def undisturbed_s(times_s: Iterable[float]) -> float:
    """The median of the faster half: what else the machine does only ever adds, to some runs."""
    ordered = sorted(times_s)
    return median(ordered[: (len(ordered) + 1) // 2])

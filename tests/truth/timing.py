"""How long a case's steps take, on batches that the host has ready.

Like `tests.truth.measure` it imports torch and nothing of torchtally. Batches are drawn beforehand:
drawing one takes the host longer than some steps take the device. Copying it there is in the step.
"""

import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from types import TracebackType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from tests.truth.cases import Training
from tests.truth.profiled import OperatorTime, operator_times

Clock = Callable[[], float]
"""Seconds since some moment."""

STEPS = 20
FEWEST_STEPS = 3
TIMED_S = 4.0
"""For the steps timed singly and those in a stretch, together; slow steps are fewer. While the
GPU's own tool is asked, as many run again."""

WARM_UP_STEPS = 6
WARM_UP_S = 1.0
"""At least so many, for at least so long: an idle GPU's clocks need a while to rise."""
WARM_UP_LIMIT_S = 2.0
"""When it ends although the steps have not settled."""
SLOW_S = 20.0
"""When it ends after however many steps."""
SETTLED = 0.02
"""How far the median of three steps may be from that of the three before."""

PROFILED_STEPS = 3


@dataclass(frozen=True, slots=True)
class Gauge:
    """What a GPU's own tool said while it was busy: medians. None for what it did not say."""

    samples: int
    sm_clock_hz: float | None
    power_w: float | None
    temperature_c: float | None


@dataclass(frozen=True, slots=True)
class Times:
    warm_up_steps: int
    """Beside the steps that measured memory."""
    is_settled: bool
    """Whether the last three steps of the warm-up took as long as the three before; False too where
    they were too slow for six."""
    step_s: tuple[float, ...]
    """Each by the wall clock, from an idle device to an idle device."""
    phase_s: dict[str, float]
    """Medians over the same steps, by the clock of the device where it has one. What a phase does
    for several batches is added up."""
    stretch_steps: int
    stretch_step_s: float
    """Mean of so many steps in a row that waited for the device only at the end, as training does:
    the host runs ahead."""
    gauge: Gauge | None
    """In another stretch; in corpora until 2026-11-26 in that one, whose host it held up. None
    where nobody knows."""
    profiled_steps: int = 0
    operators: tuple[OperatorTime, ...] | None = None
    """Of steps after all the others; None where the profiler gave none."""

    @property
    def median_step_s(self) -> float:
        return median(self.step_s)

    @property
    def undisturbed_step_s(self) -> float:
        """The shorter of both: a step in a row takes no longer than one from idle to idle, but
        where something else went on beside it.
        """
        return min(self.median_step_s, self.stretch_step_s)

    def to_json(self) -> dict[str, Any]:
        """Operators as `OperatorTime.to_json` writes them, a list for each."""
        return {name: getattr(self, name) for name in self.__slots__} | {
            "gauge": self.gauge and asdict(self.gauge),
            "operators": self.operators and [operator.to_json() for operator in self.operators],
        }

    @staticmethod
    def from_json(document: dict[str, Any]) -> "Times":
        """Raises TypeError, ValueError or KeyError for what is none."""
        gauge, operators = document["gauge"], document["operators"]
        rest = {
            "step_s": tuple(document["step_s"]),
            "gauge": gauge and Gauge(**gauge),
            "operators": operators and tuple(map(OperatorTime.from_json, operators)),
        }
        return Times(**{**document, **rest})


class Watch:
    """Runs steps of a case and times them."""

    def __init__(self, training: Training, clock: Clock = time.perf_counter) -> None:
        self.training, self.clock = training, clock
        self.device = training.device
        self.is_gpu = self.device.type == "cuda"
        self.batches = [training.batch() for _ in range(training.case.accumulation)]

    def wait(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def run(self, mark: Callable[[str], None] = lambda phase: None) -> None:
        self.training.step(mark, self.batches)

    def single(self) -> tuple[float, dict[str, float]]:
        """Seconds of a step from idle to idle, and of each of its phases."""
        self.wait()
        stamps = [("", self.stamp())]
        start = self.clock()
        self.run(lambda phase: stamps.append((phase, self.stamp())))
        self.wait()
        step_s = self.clock() - start
        phase_s: dict[str, float] = defaultdict(float)
        for (_, before), (phase, after) in pairwise(stamps):
            phase_s[phase] += between(before, after)
        return step_s, dict(phase_s)

    def stamp(self) -> "Stamp":
        if not self.is_gpu:
            return self.clock()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def warm_up(self) -> list[float]:
        """Seconds of each step, until they have settled or it has taken long enough."""
        step_s: list[float] = []
        while not is_warm(step_s):
            step_s.append(self.single()[0])
        return step_s

    def stretch(self, steps: int) -> float:
        """Seconds of so many steps, with a single wait at their end."""
        self.wait()
        start = self.clock()
        for _ in range(steps):
            self.run()
        self.wait()
        return self.clock() - start

    def profiled(self, steps: int = PROFILED_STEPS) -> tuple[OperatorTime, ...]:
        """What the profiler says of so many steps."""
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.is_gpu else [])]
        # The first step under a profiler is its own warm-up, and thrown away.
        for number in (1, steps):
            with profile(activities=activities, record_shapes=True) as profiler:
                for _ in range(number):
                    self.run()
                self.wait()
        assert profiler.profiler is not None
        results = profiler.profiler.kineto_results
        assert results is not None
        rows = tuple(operator_times(results.events(), steps, is_gpu=self.is_gpu))
        if not rows:
            raise RuntimeError("the profiler saw no kernels")
        return rows


Stamp = torch.cuda.Event | float
"""A moment on the device, or on the host."""


def between(before: Stamp, after: Stamp) -> float:
    """Seconds; of a device only once it has waited for."""
    if isinstance(before, torch.cuda.Event):
        assert isinstance(after, torch.cuda.Event)
        return float(before.elapsed_time(after)) / 1e3
    assert isinstance(after, float)
    return after - before


def is_warm(step_s: Sequence[float]) -> bool:
    """Whether steps that took so long are warm-up enough."""
    taken_s = sum(step_s)
    if len(step_s) < WARM_UP_STEPS:
        return taken_s >= SLOW_S
    return taken_s >= WARM_UP_LIMIT_S or (taken_s >= WARM_UP_S and is_settled(step_s))


def is_settled(step_s: Sequence[float]) -> bool:
    if len(step_s) < WARM_UP_STEPS:
        return False
    before, now = median(step_s[-6:-3]), median(step_s[-3:])
    return abs(now - before) <= SETTLED * before


def steps_within(step_s: float) -> int:
    """So many steps of this length that they can be timed twice in the time there is."""
    return max(FEWEST_STEPS, min(STEPS, int(TIMED_S / 2 / step_s)))


def time_steps(watch: Watch) -> Times:
    """All but the operators. Raises RuntimeError as the steps do: out of memory is one."""
    warm_up_s = watch.warm_up()
    steps = steps_within(median(warm_up_s[-3:]))
    singles = [watch.single() for _ in range(steps)]
    stretch_s = watch.stretch(steps)
    with GaugeReader(watch.device) as reader:
        watch.stretch(steps)
        reader.stop()
    return Times(
        warm_up_steps=len(warm_up_s),
        is_settled=is_settled(warm_up_s),
        step_s=tuple(step_s for step_s, _ in singles),
        phase_s={name: median(record[name] for _, record in singles) for name in singles[0][1]},
        stretch_steps=steps,
        stretch_step_s=stretch_s / steps,
        gauge=gauge(reader.samples),
    )


# The GPU's own tool ---------------------------------------------------------------------------

QUERIES = ("clocks.sm", "power.draw", "temperature.gpu")
PAUSE_S = 0.5
"""Between two questions: starting a process holds up the host."""

Sample = tuple[float | None, ...]
"""Megahertz, watts, degrees Celsius."""


def gauge(samples: Sequence[Sample]) -> Gauge | None:
    """Medians of what is known."""
    if not samples:
        return None
    columns = [
        [value for value in column if value is not None] for column in zip(*samples, strict=True)
    ]
    sm_clock_mhz, power_w, temperature_c = (
        median(column) if column else None for column in columns
    )
    sm_clock_hz = None if sm_clock_mhz is None else sm_clock_mhz * 1e6
    return Gauge(len(samples), sm_clock_hz, power_w, temperature_c)


def asked(name: str) -> Sample | None:
    """What nvidia-smi says of this GPU now; None where it cannot be asked."""
    command = ["nvidia-smi", f"--id={name}", f"--query-gpu={','.join(QUERIES)}",
               "--format=csv,noheader,nounits"]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    cells = (done.stdout.splitlines() or [""])[0].split(",")
    return tuple(map(number, cells)) if len(cells) == len(QUERIES) else None


def number(cell: str) -> float | None:
    """None for "[N/A]" and its like."""
    try:
        return float(cell)
    except ValueError:
        return None


class GaugeReader:
    """Asks again and again, in a thread, until told to stop.

    Answers that come later do not count: the device may have been idle.
    """

    def __init__(self, device: torch.device) -> None:
        is_gpu = device.type == "cuda"
        known = getattr(torch.cuda.get_device_properties(device), "uuid", None) if is_gpu else None
        self.name = None if known is None else f"GPU-{known}"
        self.samples: list[Sample] = []
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.read, daemon=True)

    def __enter__(self) -> "GaugeReader":
        self.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        self.thread.join()

    def stop(self) -> None:
        self.stopped.set()

    def read(self) -> None:
        while self.name is not None and not self.stopped.is_set():
            reading = asked(self.name)
            if reading is None:
                return
            if not self.stopped.is_set():
                self.samples.append(reading)
            self.stopped.wait(PAUSE_S)

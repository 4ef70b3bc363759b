"""Train a case for three steps, and ask `torch.cuda` at every turn how much memory is held.

The same code runs on a GPU and on a virtual one: both answer the same questions. It imports torch
and nothing of torchtally. The host has no such figures; there they are None.

    python -m tests.truth.measure gpt2-tiny --device cuda      one case, as JSON on stdout
    python -m tests.truth.measure gpt2-tiny --times            and then how long its steps take
    python -m tests.truth.measure --about --device cuda        the machine, as JSON on stdout
    python -m tests.truth.measure --spare                      imports, then waits to be told what

`tests.truth.collect` runs this once for every case, each in a process of its own: what one case
leaves in the allocator is not in the figures of the next.
"""

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from tests.truth.cases import Case, Training, case_of
from tests.truth.timing import PROFILED_STEPS, Times, Watch, time_steps

STEPS = 3

Json = dict[str, Any]


@dataclass(frozen=True)
class Mark:
    """What is held at the end of a phase."""

    phase: str
    """"build" for model and optimizer, then "forward", "backward", "optimizer", "zero_grad"."""
    allocated_bytes: int | None
    """None where nobody knows, never 0."""
    reserved_bytes: int | None


@dataclass(frozen=True)
class Step:
    marks: tuple[Mark, ...]
    """In order; forward and backward once for each batch. Fewer where memory ran out."""
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    seconds: float
    """By the wall clock, to the end of the device's work."""


@dataclass(frozen=True)
class Measurement:
    """What was seen of one case."""

    available_bytes: int | None
    """What the device had free before the case began, its context made."""
    build: Mark | None
    """None where not even the model fitted."""
    steps: tuple[Step, ...]
    out_of_memory: bool = False
    stopped_in: str = ""
    """Where memory ran out: "build", or as "step 1, backward"."""
    outside_bytes: int | None = None
    """What the device held at the end beside all that was reserved: its context, kernels and
    libraries, and other processes."""
    times: Times | None = None
    """Of steps after those above, which they leave as they were; None where none were timed, as
    where memory ran out."""
    times_error: str | None = None
    """Why times were wanted and are missing, or the operators in them."""

    @property
    def peak_allocated_bytes(self) -> int | None:
        """The most in any step."""
        return most(step.peak_allocated_bytes for step in self.steps)

    @property
    def peak_reserved_bytes(self) -> int | None:
        return most(step.peak_reserved_bytes for step in self.steps)

    def marks(self) -> dict[str, Mark]:
        """By phase: those of the build and of the last step, the last one of each."""
        build = [] if self.build is None else [self.build]
        return {
            mark.phase: mark
            for mark in (*build, *(mark for s in self.steps[-1:] for mark in s.marks))
        }

    def to_json(self) -> Json:
        plain = replace(self, times=None)
        return asdict(plain) | {"times": self.times and self.times.to_json()}

    @staticmethod
    def from_json(document: Json) -> "Measurement":
        """Raises TypeError, ValueError or KeyError for what is no measurement.

        One from before times were recorded has none.
        """
        steps = tuple(
            Step(**{**step, "marks": tuple(Mark(**mark) for mark in step["marks"])})
            for step in document["steps"]
        )
        build = None if document["build"] is None else Mark(**document["build"])
        known = document.get("times")
        times = known and Times.from_json(known)
        return Measurement(**{**document, "build": build, "steps": steps, "times": times})


def most(them: Any) -> int | None:
    """The largest; None where there is none, or one is not known."""
    known = list(them)
    return None if not known or None in known else max(known)


class Meter:
    """Reads the device's memory; on the host, which has no such figures, every answer is None."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_gpu = device.type == "cuda"

    def mark(self, phase: str) -> Mark:
        if not self.is_gpu:
            return Mark(phase, None, None)
        return Mark(
            phase, torch.cuda.memory_allocated(self.device), torch.cuda.memory_reserved(self.device)
        )

    def into(self, marks: list[Mark]) -> Callable[[str], None]:
        """Adds a mark to these at the end of every phase."""
        return lambda phase: marks.append(self.mark(phase))

    def reset(self) -> None:
        if self.is_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)

    def peaks(self) -> tuple[int | None, int | None]:
        """Of allocated and of reserved bytes, since `reset`."""
        if not self.is_gpu:
            return None, None
        return (
            torch.cuda.max_memory_allocated(self.device),
            torch.cuda.max_memory_reserved(self.device),
        )

    def available(self) -> int | None:
        return torch.cuda.mem_get_info(self.device)[0] if self.is_gpu else None

    def outside(self) -> int | None:
        if not self.is_gpu:
            return None
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free - torch.cuda.memory_reserved(self.device)

    def wait(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize(self.device)


PHASES = ("forward", "backward", "optimizer", "zero_grad")


def measure(
    case: Case, device: torch.device | str, steps: int = STEPS, *, with_times: bool = False
) -> Measurement:
    """Train for so many steps. Out of memory is a result like any other, and has no times."""
    device = torch.device(device)
    meter = Meter(device)
    torch.manual_seed(0)
    available_bytes = meter.available()
    try:
        training = case.train(device)
    except torch.OutOfMemoryError:
        return Measurement(available_bytes, None, (), True, "build")
    build = meter.mark("build")
    taken: list[Step] = []
    stopped_in = ""
    for number in range(1, steps + 1):
        gc.collect()  # what is in cycles goes here, rather than whenever Python feels like it
        marks: list[Mark] = []
        meter.wait()
        meter.reset()
        start = time.perf_counter()
        try:
            training.step(meter.into(marks))
            meter.wait()
        except torch.OutOfMemoryError:
            stopped_in = f"step {number}, {phase_after(marks, case)}"
        seconds = time.perf_counter() - start
        taken.append(Step(tuple(marks), *meter.peaks(), seconds))
        if stopped_in:
            break
    seen = Measurement(
        available_bytes, build, tuple(taken), bool(stopped_in), stopped_in, meter.outside()
    )
    return timed(seen, training) if with_times and not seen.out_of_memory else seen


def timed(seen: Measurement, training: Training) -> Measurement:
    """With the times of more steps. What goes wrong there costs nothing that was seen before."""
    gc.collect()
    try:
        watch = Watch(training)
        seen = replace(seen, times=time_steps(watch))
        assert seen.times is not None
        operators = watch.profiled()
    except RuntimeError as problem:  # of which out of memory is one
        said = (str(problem).splitlines() or [type(problem).__name__])[0]
        return replace(seen, times_error=said[:500])
    times = replace(seen.times, profiled_steps=PROFILED_STEPS, operators=operators)
    return replace(seen, times=times)


def phase_after(marks: Sequence[Mark], case: Case) -> str:
    """The phase that was running when so many had ended."""
    phases = PHASES[:2] * case.accumulation + PHASES[2:]
    return phases[len(marks)]


def about(device: torch.device | str) -> Json:
    """The machine and the software. What nobody can say is None."""
    device = torch.device(device)
    facts: Json = {
        "device": platform.processor() or platform.machine(),
        "capability": None,
        "total_memory_bytes": None,
        "driver": None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": None,
        "python": platform.python_version(),
        "allocator": {
            name: os.environ[name]
            for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG",
                         "CUBLASLT_WORKSPACE_SIZE", "PYTORCH_NO_CUDA_MEMORY_CACHING")
            if name in os.environ
        },
    }  # fmt: skip
    if device.type == "cuda":
        known = torch.cuda.get_device_properties(device)
        facts |= {
            "device": known.name,
            "capability": [known.major, known.minor],
            "total_memory_bytes": known.total_memory,
            "driver": driver(),
            "cudnn": torch.backends.cudnn.version(),
        }
    return facts


def driver() -> str | None:
    """The driver's version, by its own tool; None where that cannot be asked."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout.splitlines() or [""])[0].strip() or None


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.truth.measure")
    parser.add_argument("case", nargs="?", help="the name of a case")
    parser.add_argument("--about", action="store_true", help="describe the machine instead")
    parser.add_argument("--device", default="cuda", help="cuda (the default) or cpu")
    parser.add_argument("--small", action="store_true", help="the case scaled down")
    parser.add_argument("--times", action="store_true", help="time more steps after those")
    parser.add_argument(
        "--spare", action="store_true", help="wait for the other arguments, a JSON list, on stdin"
    )
    given = parser.parse_args(arguments)
    if given.spare:
        line = sys.stdin.readline()
        if line:
            main(json.loads(line))
        return
    if given.about:
        print(json.dumps(about(given.device)))
        return
    if given.case is None:
        parser.error("name a case")
    case = case_of(given.case)
    case = case.small() if given.small else case
    print(json.dumps(measure(case, given.device, with_times=given.times).to_json()))


if __name__ == "__main__":
    main()

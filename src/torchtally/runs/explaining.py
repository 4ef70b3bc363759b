"""A profiler's file as a trace, on the chip that it names or that is given."""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence

from torchtally.chips import Chip, find_chip
from torchtally.errors import ScriptError, TraceFileError, UsageError
from torchtally.profiles import (
    Profile,
    is_execution_trace,
    is_nsys,
    read_execution_trace,
    read_kineto,
    read_nsys,
)
from torchtally.runs.explain import trace_of
from torchtally.timing.targets import CPU, target
from torchtally.trace import Trace

HOST = Chip(
    name=CPU,
    vendor=CPU,
    architecture="host",
    memory_bytes=1 << 40,
    memory_bandwidth_bytes_per_s=1e11,
    peaks={},
    source="none: its speed is not used",
)
"""What calls are made on, where a CPU ran them and was not measured by `tally bench`."""


def explain(
    path: str,
    gpu: str | None = None,
    execution: str | None = None,
    on_read: Callable[[float], None] = lambda share: None,
) -> Trace:
    """The trace in a profiler's file. `gpu` names the chip that it ran on, where the file's own
    name of it is not known; `execution` an execution trace of the same run. `on_read` is told
    which share of the file has been read.

    Raises TraceFileError for a file that is no profiler's, UsageError for an unknown chip.
    """
    profile = profile_in(path, execution, on_read)
    chip = chip_of(profile, gpu)
    return trace_of(profile, chip, is_host=chip.vendor == CPU)


def check_ranks(files: Sequence[str], traces: Sequence[Trace]) -> None:
    """Raises UsageError unless the files are different ranks of one run."""
    first, *others = (trace.world for trace in traces)
    seen = {first.rank: files[0]}
    for path, world in zip(files[1:], others, strict=True):
        if world.size != first.size:
            raise UsageError(
                f"{files[0]} is from a run of {first.size} ranks, {path} from one of "
                f"{world.size}: not the same run.\n"
                f"{ALONE}"
            )
        if world.rank in seen:
            raise UsageError(
                f"{seen[world.rank]} and {path}: both are of rank {world.rank} of {world.size}; "
                f"several files are the ranks of one run.\n{ALONE}"
            )
        seen[world.rank] = path


ALONE = "Two runs are compared by `tally explain FILE -o FILE.tally` of each, and `tally diff`."


def profile_in(path: str, execution: str | None, on_read: Callable[[float], None]) -> Profile:
    if is_nsys(path):
        if execution is not None:
            raise UsageError(
                f"{path}: an export of Nsight Systems does not number calls as {execution} does.\n"
                "An execution trace is joined with a trace of torch.profiler."
            )
        return read_nsys(path)
    if is_execution_trace(path):
        raise TraceFileError(
            f"{path}: an execution trace, which has no times.\n"
            "Name the profiler's trace of the same run, and this one with --execution-trace."
        )
    known = None if execution is None else read_execution_trace(execution)
    return read_kineto(path, known, on_read)


def chip_of(profile: Profile, gpu: str | None) -> Chip:
    """The chip that most of the device's time was spent on; the CPU where none was."""
    if not profile.activities:
        return HOST
    if gpu is not None:
        return target(gpu)
    busy_us: dict[int, float] = {}
    for activity in profile.activities:
        busy_us[activity.device] = busy_us.get(activity.device, 0.0) + activity.duration_us
    busiest = max(busy_us, key=lambda number: busy_us[number])
    named = [device.name for device in profile.devices if device.number == busiest]
    # ROCm numbers the devices of kernels otherwise than those that it describes.
    names = set(named or (device.name for device in profile.devices))
    name = names.pop() if len(names) == 1 else ""
    known = find_chip(name) if name else None
    if known is None:
        reason = (
            f"its GPU is {name!r}, which is not in the table" if name else "it does not name a GPU"
        )
        raise UsageError(
            f"{profile.file}: {reason}.\n"
            "Name the GPU it ran on: --gpu NAME (`tally gpus` lists the names)."
        )
    return known


def simulate(command: str, gpu: str) -> Trace:
    """The trace of a script as `tally run` simulates it, in a process of its own.

    Raises ScriptError where the script fails, UsageError for a command that cannot be split.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--script {command!r}: {error}.") from None
    if not words:
        raise UsageError("--script is empty: give a script with its arguments, in quotes.")
    with tempfile.TemporaryDirectory(prefix="torchtally-") as folder:
        path = os.path.join(folder, "run.tally")
        told = [
            sys.executable,
            "-m",
            "torchtally",
            "run",
            "--quiet",
            "--gpu",
            gpu,
            "-o",
            path,
            *words,
        ]
        done = subprocess.run(told, stdout=subprocess.DEVNULL, check=False)
        if done.returncode or not os.path.exists(path):
            raise ScriptError(
                f"{command}: the simulated run failed (exit code {done.returncode}).\n"
                f"To see why, run it alone: tally run --gpu {gpu} {command}"
            )
        return Trace.load(path)

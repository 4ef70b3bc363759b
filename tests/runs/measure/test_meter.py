"""The measuring program inside a simulation: what it says is what `torch.cuda` says there."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

import torchtally
from tests.warm import warm_python
from torchtally.memory import Category, replay
from torchtally.runs.measure.meter import Meter
from torchtally.runs.measurements import Measurements
from torchtally.runs.protocol import MeasureRequest
from torchtally.trace.measurement import BACKWARD, Held, Measurement
from torchtally.tracer.steps import StepLimit, Steps, StepsDone
from torchtally.tracer.stopper import DONE
from torchtally.virtual.stand_ins import apply

WIDTH = 1024
MATRIX_BYTES = WIDTH * WIDTH * 4
BATCH = 8
GPU = "H100-SXM"


def measured(function: Callable[[], object], steps: int = 2) -> Measurement:
    """What the meter says of a function that trains."""
    with torchtally.virtual_gpu(GPU):
        meter = Meter()
        counting = Steps(meter.roles, StepLimit(steps), meter.step_completed)
        with apply(counting.stand_ins()), counting.watch():
            meter.start()
            with suppress(StepsDone):
                function()
            return meter.measurement(DONE)


def training(seen: list[tuple[int, int]] | None = None) -> None:
    """One matrix and Adam, at its peak when Adam steps.

    `seen` gets torch's own allocated bytes and peak after each backward.
    """
    model = nn.Linear(WIDTH, WIDTH, bias=False).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(9):
        x = torch.zeros(BATCH, WIDTH, device="cuda")
        model(x).square().mean().backward()
        if seen is not None:
            seen.append((torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()))
        optimizer.step()
        optimizer.zero_grad()
        del x


def test_parameters_gradients_and_state_are_whole_matrices() -> None:
    measurement_here = measured(training)
    assert len(measurement_here.steps) == 2
    assert measurement_here.held[Held.PARAMETERS] == MATRIX_BYTES
    assert measurement_here.held[Held.GRADIENTS] == MATRIX_BYTES
    # exp_avg and exp_avg_sq; Adam's step counter is on the host
    assert measurement_here.held[Held.OPTIMIZER_STATE] == 2 * MATRIX_BYTES
    assert sum(measurement_here.held.values()) == measurement_here.peak_allocated_bytes


def test_it_agrees_with_torch_and_leaves_peaks_to_the_script() -> None:
    seen: list[tuple[int, int]] = []

    def script() -> None:
        training(seen)

    measurement_here = measured(script)
    (_, first_peak), (_, second_peak) = seen
    assert measurement_here.steps[0].peak_allocated_bytes >= first_peak
    assert measurement_here.peak_allocated_bytes >= second_peak
    # After the step: what was held after backward, and in the first step two matrices of state.
    assert measurement_here.steps[0].allocated_bytes == seen[0][0] + 2 * MATRIX_BYTES
    assert measurement_here.steps[1].allocated_bytes == seen[1][0]


def test_a_script_that_resets_torchs_peaks_does_not_hide_its_own() -> None:
    def script() -> None:
        big = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
        del big
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        training()

    measurement_here = measured(script)
    assert measurement_here.peak_allocated_bytes == measurement_here.peak_reserved_bytes == 1 << 30
    assert measurement_here.steps[1].peak_allocated_bytes < 1 << 30


def test_it_agrees_with_the_trace_of_the_same_run() -> None:
    measurement_here = measured(training)
    trace = torchtally.run(training, gpu=GPU, steps=2)
    memory = replay(trace)
    at_peak = dict(memory.at_peak)
    assert measurement_here.peak_allocated_bytes == memory.peak_bytes
    assert measurement_here.held[Held.PARAMETERS] == at_peak[Category.PARAMETERS]
    assert measurement_here.held[Held.GRADIENTS] == at_peak[Category.GRADIENTS]
    assert measurement_here.held[Held.OPTIMIZER_STATE] == at_peak[Category.OPTIMIZER_STATE]
    assert measurement_here.peak_reserved_bytes == max(
        reserved.bytes for reserved in trace.reserved
    )


def test_lines_are_those_that_allocated() -> None:
    measurement_here = measured(training)
    by_text = {line.text or line.file: line.bytes for line in measurement_here.lines}
    assert by_text["model = nn.Linear(WIDTH, WIDTH, bias=False).cuda()"] == MATRIX_BYTES
    assert by_text['x = torch.zeros(BATCH, WIDTH, device="cuda")'] == BATCH * WIDTH * 4
    assert by_text["optimizer.step()"] >= 2 * MATRIX_BYTES
    assert by_text[BACKWARD] >= MATRIX_BYTES
    assert (
        sum(line.bytes for line in measurement_here.lines) <= measurement_here.peak_allocated_bytes
    )


def test_a_script_that_ends_the_history_ends_ours() -> None:
    """As on a GPU, where torch drops what it had recorded; its own counts stay."""

    def script() -> None:
        training()

    def ending() -> None:
        try:
            script()
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)

    short, whole = measured(ending), measured(script)
    assert (short.lines, short.held[Held.REST]) == ((), short.peak_allocated_bytes)
    assert short.peak_allocated_bytes == whole.peak_allocated_bytes
    assert whole.lines


SCRIPT = """\
import sys, torch
model = torch.nn.Linear(1024, 1024, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range(int(sys.argv[1])):
    model(torch.zeros(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    print("step", step)
if "fail" in sys.argv:
    raise ValueError("no more data")
"""


def request(folder: Path, *arguments: str, steps: int = 2) -> MeasureRequest:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    return MeasureRequest(
        script=str(script), arguments=arguments, is_module=False, steps=steps, gpu=GPU
    )


def test_a_process_of_its_own_stops_after_the_steps(tmp_path: Path) -> None:
    with warm_python(), Measurements() as runs:
        measurement = runs.measure(request(tmp_path, "9"))
    assert (measurement.ending, measurement.exit_code, measurement.failure) == ("steps", 0, "")
    assert len(measurement.steps) == 2
    assert measurement.held[Held.PARAMETERS] == 1024 * 1024 * 4
    assert measurement.device == "NVIDIA H100 80GB HBM3"
    assert Measurement.from_json(measurement.to_json()) == measurement


@pytest.mark.thorough
def test_a_script_that_fails_says_so_with_its_last_lines(tmp_path: Path) -> None:
    """What it printed stands before its traceback: an interpreter's start says so."""
    with Measurements() as runs:
        measurement = runs.measure(request(tmp_path, "1", "fail"))
    assert measurement.failure == "ValueError: no more data"
    assert len(measurement.steps) == 1
    assert measurement.output.startswith("step 0\nTraceback")


@pytest.mark.thorough
def test_a_process_that_dies_without_an_answer(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with warm_python(), Measurements() as runs:
        measurement = runs.measure(
            MeasureRequest(script=str(script), arguments=(), is_module=False, steps=1, gpu=GPU)
        )
    assert measurement.failure == "its process ended with signal 9, without a result"

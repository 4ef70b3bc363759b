"""`tally run --gpu cpu`: the CPU as a chip, as it was measured."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.cli.run_tally import TIMEOUT_S, environment
from tests.timing.calibration.machines import HOST
from tests.warm import warm
from torchtally.timing.calibration.file import write
from torchtally.train.precision import PRECISIONS

SCRIPT = """\
import torch
model = torch.nn.Linear(1024, 1024, bias=False).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
for step in range(3):
    events[0].record()
    loss = model(torch.ones(1024, 1024, device="cuda")).sum()
    events[1].record()
    torch.cuda.synchronize()
    print(events[0].elapsed_time(events[1]))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def tally(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        warm("import sys; from torchtally.cli import main; sys.exit(main())", *arguments),
        cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S,
        env={**environment(), "TALLY_CALIBRATIONS": str(folder / "calibrations")},
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up CPU that does a product of 1024 cubed in 20 ms, and a script."""
    project = tmp_path_factory.mktemp("cpu")
    write(HOST, project / "calibrations" / "mine.json")
    (project / "train.py").write_text(SCRIPT)
    return project


def test_a_step_on_a_cpu_takes_what_its_operators_took(folder: Path) -> None:
    """Forward and the weight's gradient: two products of 20 ms, measured at this very size."""
    done = tally(folder, "run", "train.py", "--gpu", "cpu", "--json", "report.json")
    assert done.returncode == 0, done.stderr
    assert "fits CPU\n  peak memory " in done.stderr
    assert "calibrated (measured on Some CPU @ 1.00GHz, 2026-11-21" in " ".join(done.stderr.split())
    time = json.loads((folder / "report.json").read_text())["time"]
    assert 0.040 < time["step_s"] < 0.050
    assert time["by_bound"]["compute"]["seconds"] == pytest.approx(0.040, rel=0.01)
    elapsed_ms = [float(line) for line in done.stdout.splitlines()]
    assert all(20 < time_ms < 24 for time_ms in elapsed_ms)


def test_its_trace_can_be_shown_and_compared(folder: Path) -> None:
    assert tally(folder, "run", "train.py", "--gpu", "cpu", "--quiet").returncode == 0
    shown = tally(folder, "show", "run.tally", "--by", "bound")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "compute" in shown.stdout
    compared = tally(folder, "show", "run.tally", "--gpu", "H100-SXM")
    assert compared.returncode == 0, compared.stderr
    assert "CPU" in compared.stdout
    assert "H100-SXM" in compared.stdout


def test_a_cpu_nobody_measured(folder: Path, tmp_path: Path) -> None:
    done = tally(tmp_path, "run", str(folder / "train.py"), "--gpu", "cpu", "--quiet")
    if done.returncode == 0:
        pytest.skip("a calibration of this CPU came with the package")
    assert done.returncode == 2
    assert "tally bench" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_training_is_planned_for_the_cpu_that_was_measured(folder: Path) -> None:
    examples = Path(__file__).parents[2] / "examples"
    done = tally(folder, "train", str(examples / "teacher.toml"))
    assert done.returncode == 0, done.stderr
    assert "10 steps of 4 on CPU" in done.stdout
    assert re.search(r"^  step +[0-9.]+ us$", done.stdout, re.M)


TEACHER = """\
task = "teacher"
batch = 4
[log]
folder = "runs"
"""
GPUS_ALONE = ("tf32", "fp8")
"""Precisions that need tensor cores."""


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_training_in_each_precision(folder: Path, precision: str) -> None:
    """On a CPU that was measured, which is then simulated before the first step."""
    work = folder / precision
    work.mkdir()
    (work / "teacher.toml").write_text(TEACHER)
    (work / "calibrations").symlink_to(folder / "calibrations")
    run = tally(work, "train", "teacher.toml", "--steps", "2", "--precision", precision)
    if precision in GPUS_ALONE:
        assert run.returncode == 2
        assert f"precision {precision} needs an NVIDIA GPU" in run.stderr
        assert "CPU is not one. Use" in run.stderr or "cpu is not one. Use" in run.stderr
    else:
        assert run.returncode == 0, run.stderr
        assert "2 steps, loss" in run.stdout + run.stderr

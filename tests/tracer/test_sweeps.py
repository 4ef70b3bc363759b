"""Jobs of a sweep that a stopped run leaves out are named."""

from pathlib import Path

import pytest

from tests.cli.run_tally import tally_run

LAUNCHER = """\
def launch(job_overrides, initial_job_idx):
    for idx, job in enumerate(job_overrides):
        idx = initial_job_idx + idx
        job()
"""
SWEEP = """\
import torch
from hydra._internal.core_plugins.basic_launcher import launch

def train():
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(3):
        model(torch.ones(2, 8, device="cuda")).sum().backward()
        optimizer.step()

launch([train] * 3, 5)
"""


@pytest.mark.parametrize(("steps", "job"), [("2", 1), ("4", 2), ("8", 0)])
def test_jobs_left_out_are_named(tmp_path: Path, steps: str, job: int):
    folder = tmp_path / "hydra" / "_internal" / "core_plugins"
    folder.mkdir(parents=True)
    (folder / "basic_launcher.py").write_text(LAUNCHER)
    (tmp_path / "train.py").write_text(SWEEP)
    run = tally_run("--steps", steps, "train.py", cwd=tmp_path)
    said = [note.text for note in run.trace.notes if "Hydra" in note.text]
    assert [f"to run 3 jobs, and this run ended in job {job}:" in note for note in said] == (
        [True] if job else []
    ), run.stderr

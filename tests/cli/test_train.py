"""`tally train` as a user meets it: the plan, the run, Ctrl-C, and errors before the first step."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.train.training import TINY
from tests.warm import warm
from torchtally.checkpoints.folder import Checkpoints
from torchtally.train.logs.jsonl import read_log

EXAMPLES = Path(__file__).parents[2] / "examples"
TALLY = """\
import signal, sys, torch
from torchtally.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)
sys.exit(main())
"""
TIMEOUT_S = 240


def environment() -> dict[str, str]:
    own = ("COLUMNS", "TALLY_CALIBRATIONS")
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return kept | {"NO_COLOR": "1"}


def tally(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        warm(TALLY, "train", *arguments),
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def config(folder: Path, steps: int = 8, more: str = "") -> str:
    (folder / "text.txt").write_text("".join(f"line {n}: {n * n}\n" for n in range(2000)))
    sizes = "\n".join(f"{name} = {number}" for name, number in TINY.items())
    path = folder / "tiny.toml"
    path.write_text(
        f'steps = {steps}\nbatch = 4\ndevice = "cpu"\n{more}\n'
        f'[data]\ntext = ["text.txt"]\n[log]\nfolder = "run"\nevery = 1\n[model]\n{sizes}\n'
    )
    return str(path)


def test_the_teacher(tmp_path: Path) -> None:
    done = tally(str(EXAMPLES / "teacher.toml"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "predicted" in done.stdout
    assert "10 steps, loss" in done.stdout
    assert "Predicted beside measured" in done.stderr
    assert len(read_log(tmp_path / "runs" / "teacher").series("train/loss")) == 10


@pytest.mark.thorough
def test_a_decoder(tmp_path: Path) -> None:
    done = tally(config(tmp_path), "--steps", "5", "--optimizer.lr", "1e-2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    log = read_log(tmp_path / "run")
    assert log.run["config"]["optimizer"]["lr"] == 1e-2
    assert len(log.series("train/loss")) == 5
    assert "validation loss" in done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.thorough
def test_a_plan_for_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    done = tally("--plan", "--gpu", "H100-SXM", config(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for said in ("on H100-SXM", "parameters", "optimizer state", "activations", "peak", "step"):
        assert said in done.stdout
    assert not (tmp_path / "run").exists()


def test_ctrl_c_keeps_what_was_reached_and_it_goes_on(tmp_path: Path) -> None:
    path = config(tmp_path, steps=100_000)
    process = subprocess.Popen(
        warm(TALLY, "train", path),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    log = tmp_path / "run" / "log.jsonl"
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s and (
        not log.exists() or log.read_text().count("train/loss") < 5  # one in the header
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert "SIGINT: saving" in stderr
    assert len(read_log(tmp_path / "run").series("train/loss")) >= 3

    done = Checkpoints(tmp_path / "run").steps()[0]
    changed = tally("--resume", path, "--steps", str(done + 2), cwd=tmp_path)
    assert changed.returncode == 2
    assert f"steps: saved 100000, now {done + 2}" in changed.stderr
    rest = tally("--resume", "--allow-changes", path, "--steps", str(done + 2), cwd=tmp_path)
    assert rest.returncode == 0
    assert f"resuming from step {done}" in rest.stderr
    steps = [step for step, _ in read_log(tmp_path / "run").series("train/loss")]
    assert steps == list(range(1, done + 3))


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    path = config(tmp_path, steps=2)
    with Checkpoints(tmp_path / "run").lock():
        second = tally(path, cwd=tmp_path)
    assert second.returncode == 2
    assert "another run is training there" in second.stderr
    assert second.stdout == ""  # no plan of a training that is refused


def test_another_run_is_not_overwritten(tmp_path: Path) -> None:
    path = config(tmp_path, steps=2)
    assert tally(path, cwd=tmp_path).returncode == 0
    again = tally(path, cwd=tmp_path)
    assert again.returncode == 2
    assert "has checkpoints of an earlier run" in again.stderr
    assert again.stdout == ""
    other = tally("--resume", path, "--optimizer.lr", "0.5", cwd=tmp_path)
    assert other.returncode == 2
    assert "optimizer.lr: saved None, now 0.5" in other.stderr
    assert other.stdout == ""
    assert tally("--replace", path, cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.toml"], "nowhere.toml: cannot be read"),
        (["tiny.toml", "--steps", "0"], "steps: expected a whole number above 0, got"),
        (["--gpu", "H100-SXM", "tiny.toml"], "--gpu applies to --plan only"),
        (["--plan", "--gpu", "H1000", "tiny.toml"], "No chip is called 'H1000'"),
        (["tiny.toml", "--data.text", "nothing.txt"], "nothing.txt"),
        (["tiny.toml", "--device", "cuda"], "this machine has no usable GPU"),
    ],
)
def test_what_is_wrong_is_said_before_the_first_step(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    config(tmp_path)
    done = tally(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_training_is_run_on_a_simulated_gpu(tmp_path: Path) -> None:
    """Under `tally run` the training is its own plan: it does not simulate within a simulation."""
    path = config(tmp_path).removeprefix(f"{tmp_path}/")
    arguments = ("run", "--gpu", "H100-SXM", "--no-advice", "--json", "report.json", "-m",
                 "torchtally", "train", path, "--device", "cuda", "--no-compile")  # fmt: skip
    done = subprocess.run(
        warm(TALLY, *arguments), cwd=tmp_path, env=environment(), capture_output=True, text=True,
        timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "per steady-state step 2" in done.stderr
    assert "predicted" not in done.stdout
    assert not (tmp_path / "run").exists()
    held = json.loads((tmp_path / "report.json").read_text())["memory"]["at_peak"]
    assert held["parameters"] == held["gradients"]
    assert 1 <= held["parameters"] / (35_040 * 4) < 1.02  # blocks are rounded up to 512 bytes

"""`tally sweep` as a user meets it: what it prints, what it leaves, and a kill in the middle."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run_tally import END, TALLY
from tests.sweep.sweeps import TEACHER
from tests.warm import cold, warm
from torchtally.cli import main
from torchtally.sweep import make
from torchtally.sweep.conduct import StopSignals
from torchtally.train.logs.jsonl import read_log

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 240


def environment() -> dict[str, str]:
    own = ("COLUMNS", "TALLY_CALIBRATIONS")
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return kept | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


def tally(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        warm(TALLY + END, "sweep", *arguments),
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "teacher.toml").write_text(TEACHER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.thorough
def test_the_missions_learning_rates_and_one_that_diverges(tmp_path: Path) -> None:
    done = tally(
        str(EXAMPLES / "teacher.toml"), "--grid", "optimizer.lr=0.01,0.1,1e38", "--workers", "2",
        "--json", "out.json", "--out", "sweep", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    loaded = json.loads((tmp_path / "out.json").read_text())
    assert loaded == json.loads((tmp_path / "sweep" / "results.json").read_text())
    runs = {run["values"]["optimizer.lr"]: run for run in loaded["runs"]}
    assert [runs[value]["status"] for value in (0.01, 0.1, 1e38)] == ["ended", "ended", "diverged"]
    for lr in (0.01, 0.1):
        log = read_log(tmp_path / "sweep" / f"lr={lr:g}")
        assert log.run["config"]["optimizer"]["lr"] == lr
        assert runs[lr]["final_loss"] == log.series("train/loss")[-1][1]
        assert runs[lr]["steps"] == 10
    # But for lines with a path, which is as long as it is.
    assert max(len(line) for line in done.stdout.splitlines() if "/" not in line) <= 80
    assert "diverged" in done.stdout
    assert "3/3" in done.stderr
    assert "10 steps, loss" in (tmp_path / "sweep" / "lr=0.1" / "output.txt").read_text()


@pytest.mark.thorough(
    "test_a_sweep_is_kept_and_resumed, and test_killed_by_9_we_leave_no_run_behind"
)
def test_killed_by_9_and_resumed(here: Path) -> None:
    """What ended is kept, what went on dies with the sweep, and is made to its end later."""
    command = ["teacher.toml", "--grid", "steps=5,60", "--set", "checkpoint.every=6",
               "--set", "learning_rate.shape=constant", "--workers", "1"]  # fmt: skip
    sweep = subprocess.Popen(
        cold(TALLY + END, "sweep", *command), cwd=here, env=environment(), stderr=subprocess.DEVNULL
    )
    out = here / "teacher-sweep"
    log = out / "steps=60" / "log.jsonl"
    try:
        end_s = time.monotonic() + TIMEOUT_S
        while not log.exists() or log.read_bytes().count(b"\n") < 15:
            assert time.monotonic() < end_s
            assert sweep.poll() is None
            time.sleep(0.05)
        os.kill(sweep.pid, signal.SIGKILL)
    finally:
        sweep.kill()
        sweep.wait()
    until_it_is_let_go(log)
    first = (out / "steps=5" / "result.json").read_bytes()
    assert not (out / "steps=60" / "result.json").exists()
    done = tally(*command, "--resume", cwd=here)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "1 of 2 are done, 1 run to go" in done.stderr
    assert (out / "steps=5" / "result.json").read_bytes() == first
    losses = read_log(log).series("train/loss")
    assert [step for step, _ in losses] == list(range(1, 61))
    assert not (out / "steps=60" / "checkpoints").exists()


def until_it_is_let_go(log: Path) -> None:
    """Wait for the end of whoever writes a log: its lock is then free."""
    import fcntl

    end_s = time.monotonic() + TIMEOUT_S
    with open(log, "ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                assert time.monotonic() < end_s
                time.sleep(0.05)
            else:
                return


def test_a_dry_run_says_what_would_be_and_writes_nothing(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "teacher.toml", "--grid", "optimizer.lr=0.01,0.1", "--dry-run"]) == 0
    assert capsys.readouterr().out == (
        "2 runs, in folders of teacher-sweep:\n"
        "  lr=0.01\n    tally train teacher.toml --optimizer.lr=0.01\n"
        "  lr=0.1\n    tally train teacher.toml --optimizer.lr=0.1\n"
    )
    assert [path.name for path in here.iterdir()] == ["teacher.toml"]


def test_a_signal_is_its_exit_code_and_the_table_so_far(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(jobs: object, executor: object, signals: StopSignals, **_: Any) -> None:
        signals.number = signal.SIGTERM

    monkeypatch.setattr(make, "conduct", interrupted)
    arguments = ["sweep", "teacher.toml", "--grid", "seed=1,2", "--json", "r.json"]
    assert main(arguments) == 128 + signal.SIGTERM
    assert capsys.readouterr().out.count("not run") == 2
    assert len(json.loads((here / "r.json").read_text())["runs"]) == 2


WRONG = {
    "no config": ([], "missing config"),
    "nothing to try": (["teacher.toml"], "nothing to vary"),
    "no number of draws": (["teacher.toml", "--random", "seed=1..9"], "needs a number of runs"),
    "draws of nothing": (
        ["teacher.toml", "--grid", "seed=1", "--runs", "3"],
        "applies to --random only",
    ),
    "no such file": (["none.toml", "--grid", "seed=1"], "none.toml: cannot be read"),
    "no such key": (["teacher.toml", "--grid", "lr=1"], "Did you mean optimizer.lr"),
    "a value that cannot be": (
        ["teacher.toml", "--grid", "optimizer.lr=0.1,-1"],
        "optimizer.lr: expected a finite number, 0 or more, or none, got '-1'",
    ),
    "a folder of Parquet": (
        ["teacher.toml", "--grid", "seed=1", "--parquet", "none/r.parquet"],
        "cannot be written, there is no directory",
    ),
    "nothing to resume": (["--resume", "--out", "none"], "no sweep to resume"),
}


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_command_line_runs_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["sweep", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["teacher.toml"]

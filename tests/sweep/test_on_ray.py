"""A sweep on a real Ray of this machine, where Ray is installed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.sweep.sweeps import TEACHER
from torchtally.errors import UsageError
from torchtally.runs.processes import Job
from torchtally.sweep.on_ray import RayTasks, check_ray, is_asked


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r'pip install "torchtally\[ray\]"'):
        check_ray()


def test_runs_by_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "teacher.toml").write_text(TEACHER)
    command = [
        sys.executable, "-m", "torchtally", "sweep", "teacher.toml", "--grid", "seed=1,2",
        "--on", "ray", "--out", "out",
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    loaded = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [run["status"] for run in loaded["runs"]] == ["ended", "ended"]
    assert "2 runs by last" in done.stdout


def test_a_run_whose_worker_is_killed_goes_on(tmp_path: Path) -> None:
    """The worker that runs it kills itself once; then the job is the one that resumes."""
    pytest.importorskip("ray")
    (tmp_path / "die.py").write_text(
        "import os, signal, sys\n"
        "if 'again' not in sys.argv: os.kill(os.getppid(), signal.SIGKILL)\n"
    )
    first, again = (
        Job(name="a", arguments=words, output=str(tmp_path / "out.txt"), folder=str(tmp_path))
        for words in ((), ("again",))
    )
    tasks = RayTasks(
        tmp_path, cpus=1, environment={}, most=1, wants_gpu=False, again=lambda name: again,
        module="die",
    )  # fmt: skip
    with tasks:
        tasks.start(first)
        while not (exits := tasks.collect_ended()):
            time.sleep(0.1)
    assert [(exit_.name, exit_.code, exit_.problem) for exit_ in exits] == [("a", 0, "")]


def test_one_run_is_asked_to_stop(tmp_path: Path) -> None:
    stops = str(tmp_path / "all"), str(tmp_path / "one")
    assert not is_asked(stops)
    (tmp_path / "one").touch()
    assert is_asked(stops)

"""A sweep on a real Ray of this machine, where Ray is installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sweep.sweeps import TEACHER
from torchtally.errors import UsageError
from torchtally.sweep.on_ray import check_ray


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

"""`tally train` killed at random, as `programs.py` kills three programs 500 times."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.faults.programs import STEPS, check_resumed, newest, state

KILLS = int(os.environ.get("TALLY_KILLS", "1"))


@pytest.mark.thorough("test_durable.py and test_resume.py kill single steps")
def test_it_ends_as_if_it_had_not_been_killed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.train.faults.programs", f"--kills={KILLS}", "tally"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["kills"] == KILLS
    assert report["trainings"] >= 1


def test_a_lost_checkpoint_is_seen(tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    output.write_text("tally: resuming from step 3\ntally: resuming from step 7\n")
    check_resumed(tmp_path, [0, 3, 3, 7])  # one was killed before it could say so
    with pytest.raises(AssertionError, match=r"\[3, 7\] instead of \[0, 3, 8\]"):
        check_resumed(tmp_path, [0, 3, 8])
    output.write_text("step-00000003 is damaged\n")
    with pytest.raises(AssertionError, match="was damaged"):
        check_resumed(tmp_path, [0])


def test_an_end_is_the_bytes_of_the_last_checkpoint(tmp_path: Path) -> None:
    last = tmp_path / "checkpoints" / f"step-{STEPS:08}"
    last.mkdir(parents=True)
    (last / "model.safetensors").write_bytes(b"1")
    assert newest(tmp_path) == STEPS
    assert state(tmp_path) == {"model.safetensors": b"1"}
    last.rename(last.with_name("step-00000001"))
    with pytest.raises(AssertionError, match="ended before its last step"):
        state(tmp_path)

"""A rank that fails under torchrun: all end soon, and its own error is told once."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.train.ranks.processes import RankDied, on_ranks
from tests.warm import commands
from torchtally.errors import UsageError
from torchtally.train.failing import fail_together

pytestmark = pytest.mark.one_case_in(2)

SCRIPT = Path(__file__).with_name("failing_script.py")
LIMIT_S = 120.0
"""Against hangs: torchrun itself waits 30 s for ranks that do not end, and is to wait for none."""


def mistaken(error_file: str) -> None:
    os.environ["TORCHELASTIC_ERROR_FILE"] = error_file
    if os.environ["RANK"] == "1":
        time.sleep(LIMIT_S)
    with fail_together():
        raise ZeroDivisionError("a mistake of ours")


def torchrun(how: str) -> tuple[int, str]:
    """Exit code and output of two ranks. Whatever happens, no process is left."""
    command = [
        *(str(commands() / "python"), "-m", "torch.distributed.run", "--nproc-per-node", "2"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", str(SCRIPT), how),
    ]
    process = subprocess.Popen(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # torchrun ends its ranks
        output, _ = process.communicate()
    return process.returncode, output


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("tally", "rank 1: the disk of rank 1 is full"),
        ("kill", "Signal 9 (SIGKILL) received by PID"),
    ],
)
def test_the_failing_ranks_own_error_is_told_once(how: str, told: str) -> None:
    code, output = torchrun(how)
    assert code == 1, output
    assert output.count(told) == 1, output
    cause = output.partition("Root Cause")[2]
    assert told in cause, output
    assert "rank      : 1 " in cause, output
    assert "SIGKILL" not in output or how == "kill", output  # nobody had to be killed
    assert output.count("rank 0: another rank has failed") <= 1
    assert "gloo" not in output  # and no traceback of those who found their peers gone
    assert "Traceback" not in cause


def test_a_mistake_of_ours_is_told_with_its_traceback(tmp_path: Path) -> None:
    """In torchrun's error file, and the process ends with 1."""
    file = tmp_path / "error.json"
    with pytest.raises(RankDied, match="exit code 1"):
        on_ranks(mistaken, 2, str(file))
    told = json.loads(file.read_text())["message"]["extraInfo"]["py_callstack"]
    assert told.startswith("rank 0: Traceback")
    assert told.rstrip().endswith("ZeroDivisionError: a mistake of ours")


def test_alone_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UsageError), fail_together():
        raise UsageError("as always")

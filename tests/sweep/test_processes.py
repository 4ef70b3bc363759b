"""Real processes: what they are given, how they end, and that none is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from torchtally.runs.processes import Exit, Job, Processes
from torchtally.sweep.on_ray import run_job

LIMIT_S = 60
Start = Callable[..., Processes]


@pytest.fixture(autouse=True)
def _instead_of_tally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m stand_in ARGS` runs ARGS[0] as Python: quick, and ends as it is told to."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "stand_in.py").write_text("import sys; exec(sys.argv[1])")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")


@pytest.fixture(params=[True, False], ids=["warm", "cold"])
def start(request: pytest.FixtureRequest) -> Start:
    """Processes of the stand-in."""

    def start(*environments: dict[str, str]) -> Processes:
        return Processes(environments or [{}], module="stand_in", is_warm=request.param)

    return start


def job(folder: Path, program: str, name: str = "it") -> Job:
    return Job(name=name, arguments=(program,), output=str(folder / name), folder=str(folder))


def until(claim: Callable[[], bool]) -> None:
    """Wait for it, and not for ever."""
    end_s = time.monotonic() + LIMIT_S
    while not claim():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def ended(processes: Processes, count: int = 1) -> list[Exit]:
    exits: list[Exit] = []
    until(lambda: exits.extend(processes.collect_ended()) or len(exits) >= count)  # type: ignore[func-returns-value]
    return exits


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_run_says_all_into_its_file_and_its_code_comes_back(tmp_path: Path, start: Start) -> None:
    (tmp_path / "it").write_text("before\n")
    program = "import os, sys; print(os.getcwd(), os.environ['X']); sys.exit(4)"
    with start({"X": "mine"}) as processes:
        assert processes.has_room
        processes.start(job(tmp_path, program))
        assert not processes.has_room
        (exit_,) = ended(processes)
        assert (exit_.name, exit_.code) == ("it", 4)
        assert processes.has_room
    assert (tmp_path / "it").read_text() == f"before\n{tmp_path} mine\n"


def test_each_place_has_its_environment(tmp_path: Path, start: Start) -> None:
    program = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    with start(*({"CUDA_VISIBLE_DEVICES": name} for name in ("GPU-a", "GPU-b"))) as processes:
        processes.start(job(tmp_path, program, "one"))
        processes.start(job(tmp_path, program, "two"))
        ended(processes, 2)
    assert {(tmp_path / name).read_text() for name in ("one", "two")} == {"GPU-a\n", "GPU-b\n"}


def test_asked_to_stop_a_run_may_save(tmp_path: Path, start: Start) -> None:
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(143)))\n"
        "print('going', flush=True)\n"
        "time.sleep(100)"
    )
    with start() as processes:
        processes.start(job(tmp_path, program))
        until(lambda: "going" in (tmp_path / "it").read_text())
        processes.stop()
        assert ended(processes)[0].code == 143
    assert (tmp_path / "it").read_text() == "going\nsaved\n"


CHILD = (
    "import os, signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
    "print(os.getpid(), child.pid, flush=True)\n"
    "time.sleep(100)"
)
"""Has a child, and does not listen."""


def family(output: Path) -> list[int]:
    until(lambda: output.exists() and output.read_text().endswith("\n"))
    return [int(word) for word in output.read_text().split()]


def test_on_leaving_all_are_killed_with_what_they_started(tmp_path: Path, start: Start) -> None:
    with start() as processes:
        processes.start(job(tmp_path, CHILD))
        them = family(tmp_path / "it")
        assert all(map(is_alive, them))
    until(lambda: not any(map(is_alive, them)))


SWEEP = """
import time
from torchtally.runs.processes import Job, Processes
with Processes([{{}}], module="stand_in", is_warm={is_warm}) as processes:
    processes.start(Job(name="it", arguments=({program!r},), output={output!r}, folder="."))
    time.sleep(100)
"""


@pytest.mark.parametrize("is_warm", [True, False])
def test_killed_by_9_we_leave_no_run_behind(tmp_path: Path, is_warm: bool) -> None:
    output = tmp_path / "it"
    text = SWEEP.format(is_warm=is_warm, program=CHILD, output=str(output))
    us = subprocess.Popen([sys.executable, "-c", text], cwd=tmp_path)
    try:
        them = family(output)
        assert all(map(is_alive, them))
        os.kill(us.pid, signal.SIGKILL)
        us.wait(LIMIT_S)
        until(lambda: not any(map(is_alive, them)))
    finally:
        us.kill()
        us.wait()


# What a task of Ray's does ------------------------------------------------------------------------


def test_a_task_makes_the_run_where_it_is(tmp_path: Path) -> None:
    job_result = run_job(job(tmp_path, "print('made')"), {}, (str(tmp_path / "stop"),), "stand_in")
    assert (job_result.code, (tmp_path / "it").read_text()) == (0, "made\n")


def test_a_task_that_is_asked_to_stop(tmp_path: Path) -> None:
    program = "import pathlib, time; pathlib.Path('stop').touch(); time.sleep(100)"
    assert (
        run_job(job(tmp_path, program), {}, (str(tmp_path / "stop"),), "stand_in").code
        == -signal.SIGTERM
    )
    assert (
        run_job(job(tmp_path, "0", "late"), {}, (str(tmp_path / "stop"),), "stand_in").code
        == -signal.SIGTERM
    )
    assert not (tmp_path / "late").exists()


def test_a_machine_that_does_not_see_the_folder(tmp_path: Path) -> None:
    job_result = run_job(job(tmp_path / "elsewhere", ""), {}, (str(tmp_path / "stop"),), "stand_in")
    assert "does not see" in job_result.problem
    assert "elsewhere" in job_result.problem

"""Runs that are served: the same to the byte as by themselves, or not served; nothing is left."""

import fcntl
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchtally.runs.warm import loaded_files
from torchtally.runs.warm.client import attend
from torchtally.runs.warm.identity import folder
from torchtally.runs.warm.loaded_files import LoadedFiles
from torchtally.runs.warm.server import servers_beside
from torchtally.trace import Trace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="servers fork on Linux only")

LIMIT_S = 60.0
SCRIPT = """\
import os, sys, torch
model = torch.nn.Linear(64, 32, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print(sys.argv, os.getcwd(), os.environ.get("WORD"), sys.stdin.read(), flush=True)
for _ in range(3):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""
WAITING = """\
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(worker.pid, flush=True)
time.sleep(600)
"""


class Commands:
    """`tally` in an environment of its own, with a server or without."""

    def __init__(self, folder: Path, cwd: Path) -> None:
        self.cwd = cwd
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "WORD": "said"}
        self.environment.pop("TALLY_SERVE")

    def start(self, *words: str, **variables: str) -> "subprocess.Popen[str]":
        """A command that runs."""
        return subprocess.Popen(
            [sys.executable, "-m", "torchtally", *words],
            cwd=self.cwd,
            env=self.environment | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, **variables: str) -> tuple[int, str, str]:
        """(exit code, stdout, stderr) of a command."""
        process = self.start(*words, **variables)
        output, errors = process.communicate("typed", timeout=LIMIT_S)
        return process.returncode, output, errors

    @property
    def server(self) -> int:
        """Its process."""
        _, _, errors = self.run("serve")
        return int(re.findall(r"process (\d+) serves", errors)[0])

    def spent_s(self) -> float:
        """CPU time of the server's forks that have ended."""
        fields = Path(f"/proc/{self.server}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    commands = Commands(tmp_path_factory.mktemp("sockets"), tmp_path_factory.mktemp("scripts"))
    (commands.cwd / "train.py").write_text(SCRIPT)
    (commands.cwd / "waiting.py").write_text(WAITING)
    assert commands.run("serve")[0] == 0
    yield commands
    assert commands.run("serve", "--stop")[0] == 0
    assert not list((Path(commands.environment["XDG_RUNTIME_DIR"])).glob("*/*"))


def results(commands: Commands, **variables: str) -> tuple[object, ...]:
    """All that a run leaves, without the seconds that it took on this machine."""
    words = ("run", "train.py", "--gpu", "H100-SXM", "--json", "run.json", "--rate=3")
    code, output, errors = commands.run(*words, **variables)
    trace = Trace.load(str(commands.cwd / "run.tally"))
    facts = [getattr(trace, name) for name in trace.__struct_fields__ if name != "script_work"]
    errors = re.sub(r", [\d.]+ (s|ms)$", "", errors, flags=re.MULTILINE)
    return code, output, errors, (commands.cwd / "run.json").read_bytes(), repr(facts)


def is_served(commands: Commands, run: Callable[[], object]) -> bool:
    """Whether a fork of the server's did it."""
    before_s = commands.spent_s()
    run()
    return commands.spent_s() > before_s


def test_a_served_run_is_as_one_by_itself(served: Commands) -> None:
    warm: list[object] = []
    assert is_served(served, lambda: warm.append(results(served)))
    assert warm == [results(served, TALLY_SERVE="0")]
    assert "'--rate=3'] " in str(warm)
    assert "said typed" in str(warm)


EDITS = [
    ("64", "48"), ("8, ", "3, 5, "), ("SGD", "Adam"), ("sum()", "mean()"), ("range(3)", "range(1)"),
    ("32,", "32, bias=False,"), ("import os", "import os, nothing"), (".sum()", ".undefined()"),
    ("print(", "sys.exit(7) or print("), ("lr=0.1", "lr=0.1, momentum=0.9"),
]  # fmt: skip


@pytest.mark.thorough("test_a_served_run_is_as_one_by_itself")
@pytest.mark.parametrize("seed", range(4))
def test_after_an_edit_it_is_as_by_itself(served: Commands, seed: int) -> None:
    script = SCRIPT
    for old, new in random.Random(seed).sample(EDITS, 2):
        script = script.replace(old, new)
    (served.cwd / "train.py").write_text(script)
    warm: list[object] = []
    assert is_served(served, lambda: warm.append(results(served)))
    assert warm == [results(served, TALLY_SERVE="0")], script
    (served.cwd / "train.py").write_text(SCRIPT)


def run_version(commands: Commands, **variables: str) -> None:
    assert commands.run("run", "-c", "print(1)", "--gpu", "H100-SXM", **variables)[:2] == (0, "1\n")


def test_another_environment_is_not_served(served: Commands) -> None:
    assert not is_served(served, lambda: run_version(served, OMP_NUM_THREADS="3"))


@pytest.mark.thorough("test_a_changed_file_is_not_current")
def test_a_module_beside_the_script_that_shadows_a_loaded_one(served: Commands) -> None:
    place = served.cwd / "sympy.py"
    place.write_text("")
    try:
        assert not is_served(served, lambda: run_version(served))
    finally:
        place.unlink()


def wait_for(claim: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not claim():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_run_and_what_it_started(
    served: Commands, number: signal.Signals
) -> None:
    process = served.start("run", "waiting.py", "--gpu", "H100-SXM")
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    run = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    assert is_running(worker)
    assert run != process.pid
    process.send_signal(number)
    process.wait(LIMIT_S)  # the worker has its streams
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    wait_for(lambda: not is_running(run))
    if number == signal.SIGTERM:  # the script's process alone, as without a server
        os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not is_running(worker))


def test_a_changed_file_is_not_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "a_module.py"
    module.write_text("x = 1")
    monkeypatch.setattr(loaded_files, "_loaded_files", lambda: [str(module)])
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    found = module.stat()
    before = LoadedFiles()
    assert before.is_current()
    assert before.is_newer_than(time.time_ns())
    assert not before.is_newer_than(time.time_ns() + 60 * 10**9)
    module.write_text("x = 2")
    os.utime(module, ns=(found.st_atime_ns, found.st_mtime_ns))  # as `cp -p` and pip's caches do
    assert not before.is_current()
    now = LoadedFiles()
    (tmp_path / "run.tally").touch()
    assert now.is_current()
    (tmp_path / "torch.py").touch()
    assert not now.is_current()
    module.unlink()
    assert not LoadedFiles().is_shadowed_in([str(tmp_path / "absent")])


def test_servers_that_were_killed_do_not_count(tmp_path: Path) -> None:
    for name in ("killed", "serves", "ours"):
        (tmp_path / f"{name}.socket").touch()
        (tmp_path / f"{name}.socket.lock").touch()
    with open(tmp_path / "serves.socket.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert servers_beside(str(tmp_path / "ours.socket")) == 1
    assert sorted(path.stem for path in tmp_path.glob("*.socket")) == ["ours", "serves"]
    assert not (tmp_path / "killed.socket.lock").exists()


def test_a_server_that_has_gone_before_the_run_lets_it_go_on() -> None:
    ours, server = socket.socketpair()
    server.close()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert attend(ours, [0, 1, 2]) is None
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_a_relative_folder_for_sockets_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "here")
    assert folder() == f"/tmp/torchtally-{os.getuid()}"

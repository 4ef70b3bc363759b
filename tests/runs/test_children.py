"""A supervised child, warm and cold: what it is given, what is fresh in it, and what it leaves."""

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from torchtally.runs import children as module
from torchtally.runs import server as server_module
from torchtally.runs.children import Children, EndedChild, last_lines
from torchtally.runs.protocol import (
    ModuleRequest,
    ProbeRequest,
    ProbeResult,
    Request,
    read_request,
    write,
)
from torchtally.runs.server import can_fork

LIMIT_S = 60.0
PROGRAM = """\
import os, signal, sys, threading, random
print(sys.argv[1:], __name__, os.getcwd(), os.environ.get("CUDA_VISIBLE_DEVICES"))
print(os.getpgid(0) == os.getpid() == os.getsid(0), sys.stdin.read() == "", os.getpid())
print(sorted(set(map(int, os.listdir("/proc/self/fd"))) - {0, 1, 2}).__len__())
print(threading.enumerate() == [threading.main_thread()], signal.getsignal(signal.SIGCHLD).name)
print(random.random(), sys.stdout.name, signal.set_wakeup_fd(-1), sys.stdout.line_buffering)
if "fail" in sys.argv:
    sys.exit(3)
"""


@pytest.fixture(params=[True, False], ids=["warm", "cold"])
def is_warm(request: pytest.FixtureRequest) -> bool:
    if request.param and not can_fork():
        pytest.skip("children are forked on Linux only")
    return bool(request.param)


@pytest.fixture(autouse=True)
def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def children(is_warm: bool) -> Iterator[Children]:
    with Children("test", is_warm=is_warm) as children:
        yield children


def next_end(children: Children) -> EndedChild:
    deadline_s = time.monotonic() + LIMIT_S
    while not (ended := children.collect_ended(1.0)):
        assert time.monotonic() < deadline_s
    assert len(ended) == 1
    return ended[0]


def module_request(*arguments: str, name: str = "program") -> ModuleRequest:
    return ModuleRequest(module=name, arguments=arguments)


def lines(children: Children, *arguments: str) -> list[str]:
    children.start("key", module_request(*arguments))
    return next_end(children).output.splitlines()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_is_like_a_new_interpreter(children: Children, tmp_path: Path) -> None:
    told = lines(children, "a", "b c")
    assert told[0] == f"['a', 'b c'] __main__ {tmp_path} None"
    assert told[1].startswith("True True ")
    assert told[2] == "2", "the lifeline, and the listing itself"
    assert told[3] == "True SIG_DFL"
    assert told[4].split()[1:] == ["<stdout>", "-1", "False"]


def test_siblings_share_no_random_state(children: Children) -> None:
    first, second = (float(lines(children)[4].split()[0]) for _ in range(2))
    assert first != second
    assert random.random() not in (first, second)


def test_exit_codes_signals_and_what_is_shown(children: Children) -> None:
    children.start("key", module_request("fail"))
    ended = next_end(children)
    assert (ended.key, ended.code, ended.how) == ("key", 3, "exit code 3")
    assert ended.answer(ProbeResult) is None
    Path("program.py").write_text("import os; print('x' * 9000); os.kill(os.getpid(), 15)")
    children.start("key", module_request())
    ended = next_end(children)
    assert (ended.code, ended.how) == (-15, "signal 15")
    assert children.running == ()


def test_a_late_variable_is_the_childs_own(children: Children) -> None:
    for name in ("3", "GPU-a"):
        children.start(
            name, module_request(), environment={**os.environ, "CUDA_VISIBLE_DEVICES": name}
        )
        assert next_end(children).output.splitlines()[0].endswith(f" {name}")


@pytest.mark.thorough
@pytest.mark.skipif(not can_fork(), reason="children are forked on Linux only")
def test_what_was_read_at_import_or_another_folder_starts_cold(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "program.py").write_text("import os; print(os.getppid(), os.environ.get('OMP'))")
    path = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with Children("test") as children:
        parents = []
        for environment, cwd in (
            (path, str(tmp_path)), (path, str(tmp_path)), (path | {"OMP": "7"}, str(tmp_path)),
            (path, str(tmp_path / "elsewhere")),
        ):  # fmt: skip
            children.start("", module_request(), environment=environment, cwd=cwd)
            parents.append(next_end(children).output.split())
    assert parents[0] == parents[1] != [str(os.getpid()), "None"]
    assert parents[2] == [str(os.getpid()), "7"]
    assert parents[3] == [str(os.getpid()), "None"]


@pytest.mark.skipif(not can_fork(), reason="children are forked on Linux only")
def test_a_server_that_cannot_import_or_is_killed(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise ImportError('no torch')")
    with Children("test", preload=("broken",)) as children:
        assert lines(children)[0].startswith("[] __main__"), "started cold"
    Path("program.py").write_text("import os, time; os.kill(os.getppid(), 9); time.sleep(100)")
    with Children("test") as children:
        children.start("", module_request())
        assert next_end(children).code == module.LOST
        Path("program.py").write_text("print('cold')")
        assert lines(children) == ["cold"]


@pytest.mark.skipif(not can_fork(), reason="children are forked on Linux only")
def test_the_server_has_one_thread_when_it_forks() -> None:
    """With what probes import: torch starts no thread before an operator needs one."""
    Path("program.py").write_text(
        "import os, sys, torch\n"
        "assert 'torchtally.runs.probe.main' in sys.modules and not torch.cuda.is_initialized()\n"
        "print(os.getppid(), len(os.listdir(f'/proc/{os.getppid()}/task')))"
    )
    with Children("test", preload=("torchtally.runs.probe.main",)) as children:
        first, second = lines(children), lines(children)
    assert first == second
    assert first[0].split()[1] == "1"


@pytest.mark.parametrize("grace_s", [0.0, 5.0])
def test_on_leaving_children_may_clean_up_within_their_grace(is_warm: bool, grace_s: float) -> None:
    Path("program.py").write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (open('cleaned', 'w'), sys.exit()))\n"
        "open('ready', 'w')\ntime.sleep(100)"
    )
    with Children("test", grace_s=grace_s, is_warm=is_warm) as children:
        children.start("", module_request())
        deadline_s = time.monotonic() + LIMIT_S
        while not Path("ready").exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
    assert Path("cleaned").exists() == bool(grace_s)


@pytest.mark.thorough
def test_an_ignored_signal_stays_ignored(is_warm: bool) -> None:
    """As `nohup` starts programs."""
    Path("program.py").write_text("import signal; print(signal.getsignal(signal.SIGHUP).name)")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Children("test", is_warm=is_warm) as children:
            assert lines(children) == ["SIG_IGN"]
    finally:
        signal.signal(signal.SIGHUP, before)


# The protocol -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        ModuleRequest(module="a", arguments=("b",)),
        ProbeRequest(
            script="a", arguments=(), is_module=False, gpu="T4", steps=2, capacities=((1, 2),)
        ),
    ],
)
def test_a_request_comes_back_as_it_was_written(request_: Request, tmp_path: Path) -> None:
    write(tmp_path / "request", request_)
    assert read_request(tmp_path) == request_
    assert sorted(os.listdir(tmp_path)) == ["program.py", "request"]


def test_a_request_of_wrong_types_is_refused(tmp_path: Path) -> None:
    wrong = {"type": "module", "module": "a", "arguments": [1]}
    (tmp_path / "request").write_bytes(msgspec.msgpack.encode(wrong))
    with pytest.raises(msgspec.ValidationError, match="Expected `str`, got `int`"):
        read_request(tmp_path)


def test_last_lines_of_a_progress_bar(tmp_path: Path) -> None:
    (tmp_path / "output").write_text("".join(f"\r{n} %" for n in range(5000)))
    assert last_lines(tmp_path / "output").splitlines()[-1] == "4999 %"
    assert len(last_lines(tmp_path / "output").splitlines()) == module.LINES
    assert last_lines(tmp_path / "nothing") == ""


def test_what_a_server_is_chosen_by() -> None:
    assert server_module.early({"A": "1", "CUDA_VISIBLE_DEVICES": "0", "TALLY_RANK_OF": "1:"}) == {
        "A": "1"
    }

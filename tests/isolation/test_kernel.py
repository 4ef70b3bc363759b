"""Where the kernel keeps a run from the user's files, it does so whoever changes them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from tests.cli.run_tally import SCRIPTS, Run, environment, tally_run
from tests.isolation.snapshot import Snapshot, snapshot
from tests.scripts import destroy
from tests.scripts.bypass import WAYS
from tests.warm import TALLY, warm
from torchtally.isolation.denials import NOTE, is_denied, path_of
from torchtally.isolation.kernel import abi
from torchtally.trace import EffectKind

OURS = ("run.tally",)
pytestmark = pytest.mark.skipif(abi() < 3, reason="this kernel has no Landlock, or an early one")
SEEN = {
    "program_with_an_open_file": "'of the program\\n'",
    "spawned_process": "'of the script and of the process'",
    "process_of_a_server": "'before\\n and of the process'",
    "path_that_writes": "'y'",
    "handler_that_writes": "'of the handler'",
    "shared_memory_of_another_process": "'mine'",
    "many_descriptors_closed": "'after'",
    "written_code": "5",
    "function_by_name": "'the same'",
}
"""What the script sees of its own changes, where they are led to the run's folder."""
SILENT = ("c_mode", "c_mode_of_an_open_file", "c_times", "c_attributes",
          "shell_changes_modes_and_times")  # fmt: skip
"""They succeed, and change nothing."""
COMPILED = ("c_", "sqlite_", "history_", "arrow_", "compiled_")


@pytest.fixture(scope="module")
def memory() -> Iterator[SharedMemory]:
    memory = SharedMemory(create=True, size=8)
    memory.buf[:4] = b"user"
    yield memory
    memory.close()
    memory.unlink()


@pytest.fixture(scope="module")
def tried(
    tmp_path_factory: pytest.TempPathFactory, memory: SharedMemory
) -> tuple[Run, Snapshot, Snapshot]:
    """All ways in one run."""
    root = tmp_path_factory.mktemp("bypass")
    destroy.prepare(root, WAYS)
    before = snapshot(root)
    os.environ["TALLY_TESTS_SHARED"] = memory.name
    # What the run spawns is to be its child: a warm Python would fork it from another process.
    setup = f"import multiprocessing.spawn as s; s.set_executable({sys.executable!r})\n"
    run = tally_run("--steps", "all", str(SCRIPTS / "bypass.py"), cwd=root, setup=setup)
    return run, before, snapshot(root, without=OURS)


def test_sixty_ways_are_tried():
    assert len({**destroy.WAYS, **WAYS}) >= 60


@pytest.mark.parametrize("name", WAYS)
def test_nothing_is_changed(name: str, tried: tuple[Run, Snapshot, Snapshot]):
    run, before, after = tried
    assert of_way(after, name) == of_way(before, name), run.stdout
    (said,) = [line for line in run.stdout.splitlines() if line.startswith(f"{name}: ")]
    if name in SEEN:
        assert said == f"{name}: {SEEN[name]}"
    elif name.startswith(COMPILED) and name not in SILENT:
        assert "refused" in said or name == "c_at_the_end"


def of_way(state: Snapshot, name: str) -> Snapshot:
    made = (f"{name}/__pycache__",)
    return {
        path: facts
        for path, facts in state.items()
        if path.startswith(f"{name}/") and not path.startswith(made)
    }


def test_shared_memory_is_unchanged(tried: tuple[Run, Snapshot, Snapshot], memory: SharedMemory):
    assert tried[0].code == 0, tried[0].stderr
    again = SharedMemory(memory.name)
    assert bytes(again.buf[:4]) == b"user"
    again.close()


def test_the_report_says_who_kept_the_files(tried: tuple[Run, Snapshot, Snapshot]):
    report = " ".join(tried[0].stderr.split())
    assert "and the kernel let no other file be changed" in report
    assert "the kernel let them change none but the run's own files" in report
    assert tried[0].trace.facts["files_kept_by"] == "kernel"


def test_the_snapshot_sees_a_change(tmp_path: Path):
    """The checker is checked: without isolation the same script changes nearly every directory."""
    destroy.prepare(tmp_path, WAYS)
    before = snapshot(tmp_path)
    memory = SharedMemory(create=True, size=8)
    subprocess.run(
        [sys.executable, str(SCRIPTS / "bypass.py")],
        cwd=tmp_path,
        env=environment() | {"TALLY_TESTS_SHARED": memory.name},
        capture_output=True,
        check=True,
    )
    after = snapshot(tmp_path)
    changed = {name for name in WAYS if of_way(after, name) != of_way(before, name)}
    others = {"function_by_name", "shared_memory_of_another_process", "c_flags", "c_ring"}
    assert {*WAYS} - changed <= others
    memory.close()


def test_an_early_landlock_does_too(tmp_path: Path):
    """Its first version knows no truncation, and lets no file be moved between directories."""
    destroy.prepare(tmp_path)
    before = snapshot(tmp_path)
    setup = "import torchtally.isolation.kernel as kernel; kernel.abi = lambda: 1\n"
    run = tally_run(str(SCRIPTS / "destroy.py"), cwd=tmp_path, setup=setup)
    assert run.code == 0, run.stderr
    assert run.trace.facts["files_kept_by"] == "kernel"
    assert snapshot(tmp_path, without=OURS) == before


@pytest.mark.parametrize("missing", ["abi", "_filter_calls"])
def test_a_kernel_that_does_a_part_is_not_praised(tmp_path: Path, missing: str):
    """The trace is saved all the same."""
    (tmp_path / "train.py").write_text("open('log', 'w').write('x')\n")
    setup = (
        "import torchtally.isolation.kernel as kernel\n"
        "def fail(**_): raise OSError(1, 'no filters here')\n"
        f"kernel.{missing} = (lambda: 0) if {missing!r} == 'abi' else fail\n"
    )
    run = tally_run("train.py", cwd=tmp_path, setup=setup)
    assert run.code == 0, run.stderr
    assert run.trace.facts["files_kept_by"] == "python"
    assert "Python's own functions changed no file that existed" in " ".join(run.stderr.split())
    assert sorted(os.listdir(tmp_path)) == ["run.tally", "run.tally.files", "train.py"]


DENIED = """\
import pyarrow as pa
from pyarrow import fs
fs.LocalFileSystem().delete_file("ckpt.pt")
"""


def test_an_error_by_the_kernel_is_explained(tmp_path: Path):
    (tmp_path / "train.py").write_text(DENIED)
    (tmp_path / "ckpt.pt").write_text("weights")
    run = tally_run("train.py", cwd=tmp_path)
    assert run.code == 1
    assert "Cannot delete file 'ckpt.pt'" in run.stderr
    assert "the kernel keeps a simulated run" in run.stderr
    assert "--writes real" in run.stderr
    assert tally_run("--writes", "real", "train.py", cwd=tmp_path).code == 0
    assert not (tmp_path / "ckpt.pt").exists()


SWALLOWED = """\
from pyarrow import fs
for _ in range(2):
    try:
        fs.LocalFileSystem().delete_file("ckpt.pt")
    except OSError as error:
        print(error.__notes__)
"""
MONITORING = """\
import sys, types
if not hasattr(sys, "monitoring"):  # before Python 3.12: what it announces, by slower means
    def register(tool, event, callback):
        def trace(frame, event, arg):
            if event == "exception":
                callback(frame.f_code, 0, arg[1])
            return trace
        sys.settrace(trace)
    sys.monitoring = types.SimpleNamespace(
        events=types.SimpleNamespace(RAISE=1), register_callback=register,
        get_tool=lambda _: None, use_tool_id=lambda *_: None, set_events=lambda *_: None,
    )
"""


def test_what_the_kernel_denies_is_reported_though_the_script_goes_on(tmp_path: Path):
    (tmp_path / "train.py").write_text(SWALLOWED)
    (tmp_path / "ckpt.pt").write_text("weights")
    run = tally_run("train.py", cwd=tmp_path, setup=MONITORING)
    assert (run.code, run.stdout) == (0, f"{[NOTE]}\n" * 2)
    (effect,) = (each for each in run.trace.effects if each.kind is EffectKind.REFUSED_WRITE)
    assert (effect.name, effect.count) == (str(tmp_path / "ckpt.pt"), 2)
    assert effect.frame is not None
    assert effect.frame.line == 4
    assert "Refused, since it bypasses the run's own files" in run.stderr


@pytest.mark.parametrize(("error", "name"), [
    (PermissionError(13, "Permission denied", "a.pt"), "a.pt"),
    (OSError(13, "Cannot delete file 'a.pt'. Detail: [errno 13] Permission denied"), "a.pt"),
    (OSError("Unable to open (name = 'a', errno = 13, error message = 'Permission denied')"), "a"),
    (RuntimeError('IO Error: Cannot open file "tmp_a.csv": Permission denied'), "tmp_a.csv"),
    (PermissionError("Permission denied (os error 13): dir/a=1/0.parquet"), "dir/a=1/0.parquet"),
    (RuntimeError("unable to open database: /nowhere/a.db"), "/nowhere/a.db"),
    (RuntimeError("attempt to write a readonly database"), None),
    (PermissionError(13, "Permission denied"), None),
])  # fmt: skip
def test_errors_of_libraries_say_what_was_denied(error: Exception, name: str | None):
    assert is_denied(error)
    assert path_of(error) == (None if name is None else os.path.abspath(name))


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file", "a"), ValueError("denied")])
def test_other_errors_are_not_the_kernels(error: Exception):
    assert not is_denied(error)


def test_nothing_is_explained_that_the_user_may_not_do(tmp_path: Path):
    (tmp_path / "train.py").write_text("raise PermissionError(13, 'Permission denied', '/nowhere')")
    assert "the kernel keeps" in tally_run("train.py", cwd=tmp_path).stderr
    (tmp_path / "train.py").write_text("raise PermissionError(1, 'Operation not permitted')")
    assert "the kernel keeps" not in tally_run("train.py", cwd=tmp_path).stderr


CHILD = """\
import subprocess, torch
subprocess.run("echo x > ckpt.pt", shell=True)
net = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(net.parameters())
for _ in range(3):
    net(torch.ones(2, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("command", [
    ("fit", "train.py", "--vary", "{}", "--to", "2", "--gpu", "T4", "--quiet"),
    ("run", "train.py", "--gpu", "2xH100-SXM", "--rank", "0,1"),
    ("run", "train.py", "--gpu", "H100-SXM", "--what-if", "optimizer=fused"),
])  # fmt: skip
def test_other_processes_are_kept_from_files_too(tmp_path: Path, command: tuple[str, ...]):
    (tmp_path / "train.py").write_text(CHILD)
    (tmp_path / "ckpt.pt").write_text("weights of last week")
    before = snapshot(tmp_path)
    subprocess.run(warm(TALLY, *command), cwd=tmp_path, env=environment(), capture_output=True)
    assert snapshot(tmp_path, without=OURS) == before


def test_temporary_folders_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Those of a run, and those that a killed one has left."""
    system = tmp_path / "system"
    system.mkdir()
    left = system / "tally-run-01234567"
    left.mkdir()
    (left / ".journal").write_bytes(b"torchtally files 1\n")
    monkeypatch.setenv("TMPDIR", str(system))
    (tmp_path / "train.py").write_text("import tempfile\nprint(tempfile.mkdtemp())\n")
    run = tally_run("train.py", cwd=tmp_path, setup="import tempfile; tempfile.tempdir = None\n")
    assert run.stdout.startswith(f"{system}/tally-run-"), run.stderr
    assert os.listdir(system) == []


SPAWNS = """\
import multiprocessing, pathlib
import torch, torchtally

def train():
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=pathlib.Path("text").write_text, args=("of the process",))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert pathlib.Path("text").read_text() == "of the process"

if __name__ == "__main__":
    torchtally.run(train, gpu="H100-SXM")
"""


def test_a_spawned_process_takes_part_without_the_kernel(tmp_path: Path):
    """In a process of the user's own, where no folder for temporary files is the run's."""
    (tmp_path / "train.py").write_text(SPAWNS)
    (tmp_path / "text").write_text("of the user")
    subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        env=environment(),
    )
    assert (tmp_path / "text").read_text() == "of the user"

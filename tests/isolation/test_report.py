"""What an isolated run says of files, and where they are; and the same for a function."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchtally
from tests.cli.run_tally import environment, tally_run
from tests.isolation.snapshot import snapshot
from tests.warm import TALLY, warm
from torchtally.runs.function import run
from torchtally.trace import EffectKind, Trace
from torchtally.virtual.aliases import function_of

GPU = "H100-SXM"

SAVES = """\
import os, shutil, subprocess, torch
from torch import nn
net = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).cuda()
net(torch.ones(2, 512, device="cuda")).sum().backward()
os.makedirs("out")
torch.save(net.state_dict(), "out/ckpt.tmp")
os.replace("out/ckpt.tmp", "out/ckpt.pt")
with open("log", "a") as log: log.write("1234\\n")
os.remove("old")
os.rename("first", "second")
subprocess.run(["true"])
print(os.path.getsize("log"))
"""


def files_of(trace: Trace, folder: Path) -> dict[str, tuple[int, int]]:
    """(bytes, placeholders' bytes) of what was written, by its path in a folder."""
    return {
        os.path.relpath(effect.name, folder): (effect.bytes, effect.placeholder_bytes)
        for effect in trace.effects
        if effect.kind is EffectKind.WRITTEN
    }


def names_of(trace: Trace, kind: EffectKind) -> list[str]:
    return [effect.name for effect in trace.effects if effect.kind is kind]


def test_files_have_the_size_of_a_real_run(tmp_path: Path):
    (tmp_path / "saves.py").write_text(SAVES)
    for name in ("log", "old", "first"):
        (tmp_path / name).write_text("before\n")
    traced = tally_run("saves.py", cwd=tmp_path)
    assert traced.code == 0, traced.stderr
    assert traced.stdout == "12\n"
    real = tmp_path / "real.pt"
    torch.save(nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).state_dict(), real)
    weight_bytes = 4 * 4 * (512 * 512 + 512)
    written = files_of(traced.trace, tmp_path)
    assert set(written) == {"out/ckpt.pt", "log"}
    assert written["log"] == (12, 0)
    assert written["out/ckpt.pt"][1] == weight_bytes
    assert written["out/ckpt.pt"][0] == pytest.approx(real.stat().st_size, rel=0.01)
    assert names_of(traced.trace, EffectKind.REMOVED) == [str(tmp_path / "old")]
    assert names_of(traced.trace, EffectKind.RENAMED) == [f"{tmp_path}/first -> {tmp_path}/second"]
    assert names_of(traced.trace, EffectKind.PROCESS) == ["true"]
    assert (tmp_path / "run.tally.files" / "out" / "ckpt.pt").exists()
    report = " ".join(traced.stderr.split())
    assert "Written: 2 files, 4.02 MiB in a real run; in run.tally.files, and " in report
    assert "out/ckpt.pt 4.02 MiB (shapes only: the values are placeholders)" in report
    assert "the original is still in place: old first -> second" in report
    assert "true (once)" in report


REFUSED = """\
import os, posix
for _ in range(2):
    try:
        posix.remove("ckpt.pt")
    except PermissionError:
        print("kept")
"""


def test_a_refused_change_is_reported_though_the_script_goes_on(tmp_path: Path):
    (tmp_path / "train.py").write_text(REFUSED)
    (tmp_path / "ckpt.pt").write_text("of the user")
    run = tally_run("train.py", cwd=tmp_path)
    assert (run.code, run.stdout) == (0, "kept\nkept\n")
    (effect,) = (each for each in run.trace.effects if each.kind is EffectKind.REFUSED_WRITE)
    assert (effect.name, effect.count) == (str(tmp_path / "ckpt.pt"), 2)
    assert effect.frame is not None
    assert effect.frame.line == 4
    report = " ".join(run.stderr.split())
    assert "Refused, since it bypasses the run's own files (--writes real: allow it):" in report
    assert 'train.py:4 posix.remove("ckpt.pt") (ckpt.pt, 2 times)' in report


def test_files_outside_of_the_directory_are_kept_below_the_root(tmp_path: Path):
    home, away = tmp_path / "home", tmp_path / "away"
    home.mkdir()
    away.mkdir()
    (home / "train.py").write_text(
        f"open('{away}/x', 'w').write('x')\nprint(open('{away}/x').read())"
    )
    traced = tally_run("train.py", cwd=home)
    assert traced.stdout == "x\n"
    assert os.listdir(away) == []
    assert Path(f"{home}/run.tally.files/@root{away}/x").read_text() == "x"


def test_writes_are_real_on_request(tmp_path: Path):
    (tmp_path / "train.py").write_text(
        "import torch\ntorch.save(torch.ones(1000, device='cuda'), 'x.pt')\n"
    )
    traced = tally_run("--writes", "real", "train.py", cwd=tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["run.tally", "train.py", "x.pt"]
    assert files_of(traced.trace, tmp_path)["x.pt"][1] == 4000
    assert "Written for real, with placeholders in place of values: 1 file" in traced.stderr


def test_a_run_that_writes_nothing_leaves_nothing(tmp_path: Path):
    (tmp_path / "train.py").write_text("import torch\ntorch.ones(3).cuda()\n")
    tally_run("train.py", cwd=tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["run.tally", "train.py"]


def test_temporary_files_are_real(tmp_path: Path):
    """Programs that the script starts can read them."""
    (tmp_path / "train.py").write_text("""\
import os, subprocess, tempfile
with tempfile.TemporaryDirectory() as folder:
    os.mkdir(os.path.join(folder, "inner"))
    with open(os.path.join(folder, "inner", "x"), "w") as file: file.write("seen")
    print(subprocess.check_output(["cat", file.name], text=True))
print(os.path.exists(folder))
with tempfile.NamedTemporaryFile("w+", suffix=".txt") as file:
    file.write("also"); file.flush()
    print(subprocess.check_output(["cat", file.name], text=True))
descriptor, name = tempfile.mkstemp()
os.write(descriptor, b"third"); os.close(descriptor)
print(subprocess.check_output(["cat", name], text=True))
os.remove(name)
print(os.path.exists(name), os.path.exists(file.name))
""")
    traced = tally_run("train.py", cwd=tmp_path)
    assert traced.stdout.split() == ["seen", "False", "also", "third", "False", "False"], (
        traced.stderr
    )
    assert not (tmp_path / "run.tally.files").exists()


def test_downloads_are_kept_for_the_next_run(tmp_path: Path):
    """What torch.hub fetches is as good as a real run's; what is there is not replaced."""
    (tmp_path / "there").write_text("of the user")
    (tmp_path / "source").write_text("weights")
    (tmp_path / "train.py").write_text(f"""\
import torch
for name in ("new", "there"):
    torch.hub.download_url_to_file("file://{tmp_path}/source", name, progress=False)
    print(open(name).read())
""")
    traced = tally_run("train.py", cwd=tmp_path)
    assert traced.stdout.split() == ["weights", "weights"], traced.stderr
    assert (tmp_path / "new").read_text() == "weights"
    assert (tmp_path / "there").read_text() == "of the user"


def test_processes_that_are_spawned_are_named(tmp_path: Path):
    (tmp_path / "train.py").write_text("""\
import multiprocessing, os
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=print, args=("child",))
    child.start(); child.join()
    os.system("true"); os.system("true")
""")
    names = names_of(tally_run("train.py", cwd=tmp_path).trace, EffectKind.PROCESS)
    assert sorted(names) == ["python (multiprocessing)", "true"]


# Functions ---------------------------------------------------------------------------------------


def saves(path: Path) -> None:
    torch.save(torch.ones(1000, device="cuda"), path)
    assert torch.load(path).shape == (1000,)


def test_a_function_changes_no_file(tmp_path: Path):
    path = tmp_path / "x.pt"
    path.write_bytes(b"weights of last week")
    before = snapshot(tmp_path)
    trace = run(lambda: saves(path), gpu=GPU)
    assert snapshot(tmp_path) == before
    assert files_of(trace, tmp_path)["x.pt"][1] == 4000
    assert trace.facts["files"] == "dropped"


def test_what_a_function_writes_is_kept_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run(lambda: saves(Path("x.pt")), gpu=GPU, files="kept")
    assert sorted(os.listdir("kept")) == [".journal", "x.pt"]
    run(lambda: saves(Path("x.pt")), gpu=GPU, writes="real")
    assert os.path.exists("x.pt")


def test_other_threads_write_for_real(tmp_path: Path):
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        go.wait()
        (tmp_path / "of the thread").write_text("real")
        done.set()

    thread = threading.Thread(target=work)
    thread.start()

    def script() -> None:
        go.set()
        done.wait()
        inner = threading.Thread(target=(tmp_path / "of the run").write_text, args=("isolated",))
        inner.start()
        inner.join()

    run(script, gpu=GPU)
    thread.join()
    assert os.listdir(tmp_path) == ["of the thread"]


def test_everything_is_as_before_afterwards(tmp_path: Path):
    import builtins
    import io
    import pathlib
    import shutil
    import sqlite3

    modules = (os, io, builtins, shutil, sqlite3, pathlib, tempfile, torch, subprocess)
    tempfile.mkdtemp(dir=tmp_path)  # the first of a process begins its sequence of names
    before = [dict(vars(module)) for module in modules]
    finders, supported = list(sys.meta_path), set(os.supports_dir_fd)
    run(lambda: saves(tmp_path / "x.pt"), gpu=GPU)
    assert [dict(vars(module)) for module in modules] == before
    assert sys.meta_path == finders
    assert set(os.supports_dir_fd) == supported


def test_an_error_in_the_function_leaves_nothing_replaced(tmp_path: Path):
    native = os.stat
    with pytest.raises(ZeroDivisionError):
        torchtally.run(lambda: 1 // 0, gpu=GPU)
    assert os.stat is native


# Other commands ----------------------------------------------------------------------------------

VARIES = """\
import sys, torch
from torch import nn
net = nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(net.parameters())
for step in range(3):
    net(torch.ones(int(sys.argv[1]), 256, device="cuda")).sum().backward()
    optimizer.step()
    torch.save(net.state_dict(), "ckpt.pt")
    open(f"step-{step}", "w").write("x")
"""


@pytest.mark.thorough
def test_fit_changes_no_file(tmp_path: Path):
    (tmp_path / "train.py").write_text(VARIES)
    (tmp_path / "ckpt.pt").write_bytes(b"weights of last week")
    before = snapshot(tmp_path)
    subprocess.run(
        warm(TALLY, "fit", "train.py", "--vary", "{}", "--to", "4", "--gpu", "T4", "--quiet", "1"),
        cwd=tmp_path, env=environment(), check=True, capture_output=True,
    )  # fmt: skip
    assert snapshot(tmp_path) == before


def test_what_ifs_change_no_file(tmp_path: Path):
    """After running out of memory, changes are tried by runs of the whole script."""
    (tmp_path / "train.py").write_text(VARIES.replace("256", "16384"))
    (tmp_path / "ckpt.pt").write_bytes(b"weights of last week")
    before = snapshot(tmp_path)
    traced = tally_run("train.py", "2000000", cwd=tmp_path)
    assert "OutOfMemoryError" in traced.trace.ending.message
    assert snapshot(tmp_path, without=("run.tally",)) == before


def test_reading_a_modules_names_asks_its_objects_nothing() -> None:
    """`torch.distributed.reduce_op` warns whoever asks it for anything, its class included."""

    class Asked:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    asked = Asked()
    assert function_of(asked) is asked
    assert function_of(staticmethod(len)) is len

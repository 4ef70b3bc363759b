"""`tally diff --commits` in real repositories of git."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.run_tally import END, TALLY, TIMEOUT_S, environment
from tests.warm import cold, warm

pytestmark = pytest.mark.one_case_in(3)

SCRIPT = """\
import sys
import torch
from parts.model import net
model = net().cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.randn(int(sys.argv[1]), 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
NET = "import torch\n\n\ndef net():\n    return torch.nn.Linear(64, {width})\n"
GPU = ("--gpu", "H100-SXM")


def git(*words: str, cwd: Path) -> str:
    name = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    done = subprocess.run(
        ["git", *name, *words], check=True, capture_output=True, text=True, cwd=cwd
    )
    return done.stdout


def write(folder: Path, width: int, message: str = "") -> None:
    (folder / "parts").mkdir(exist_ok=True)
    (folder / "parts" / "model.py").write_text(NET.format(width=width))
    if message:
        git("add", "-A", cwd=folder)
        git("commit", "-qm", message, cwd=folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A first commit without a script, one of 64 to 32, one of 64 to 128, and uncommitted 256."""
    place = tmp_path / "work"
    place.mkdir()
    git("init", "-q", ".", cwd=place)
    write(place, 16, "no script")
    (place / "train.py").write_text(SCRIPT)
    write(place, 32, "narrow")
    git("tag", "narrow", cwd=place)
    (place / "parts" / "other.txt").write_text("new")
    write(place, 128, "wide")
    write(place, 256)
    return place


def diff(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    temporary = cwd.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    return subprocess.run(
        warm(TALLY + END, "diff", *words), cwd=cwd, capture_output=True,
        text=True, timeout=TIMEOUT_S, env=environment() | {"TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def is_clean(folder: Path) -> bool:
    """No worktree but the user's, no folder left, the changes as they were."""
    return (
        len(git("worktree", "list", cwd=folder).splitlines()) == 1
        and not list((folder.parent / "temporary").glob("tally-*"))
        and git("status", "--porcelain", "-uno", cwd=folder).split() == ["M", "parts/model.py"]
        and "256" in (folder / "parts" / "model.py").read_text()
    )


def products(width: int, batch: int = 8) -> int:
    """Forward, and the gradient of the weight alone."""
    return 2 * 2 * batch * 64 * width


def test_two_commits_beside_each_other(folder: Path) -> None:
    words = ("--commits", "narrow..HEAD", *GPU, "--by", "line")
    done = diff(*words, "--json", "train.py", "8", cwd=folder)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    (row,) = [row for row in rows if row["line"] == 7]
    assert row["file"] == str(folder / "train.py")
    assert row["present"] == "both"
    # And the sum of the losses, with its gradient: a FLOP or so for each number.
    assert 0 <= row["flops_change"] - (products(128) - products(32)) <= 4 * 8 * 128
    assert "narrow (" in done.stderr
    assert is_clean(folder)


@pytest.mark.thorough
def test_a_commit_beside_the_working_tree_as_a_page(folder: Path) -> None:
    done = diff("--commits", "HEAD..", *GPU, "train.py", "8", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Before and after: H100-SXM")
    assert "working tree" in done.stderr
    assert "train.py:7" in done.stdout
    assert is_clean(folder)
    markdown = diff("--commits", "HEAD..", *GPU, "--format", "markdown", "../train.py", "8",
                    cwd=folder / "parts")  # fmt: skip
    assert markdown.returncode == 0, markdown.stderr
    assert "| run | step |" in markdown.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--commits", "HEAD..nowhere", "train.py", "8"), 2, "nowhere: no such commit"),
        (("--commits", "HEAD~2..HEAD", "train.py", "8"), 2, "train.py: no such file at HEAD~2"),
        (("--commits", "narrow..HEAD", "train.py", "x"), 2, "ValueError: invalid literal"),
        (("--commits", "narrow..HEAD"), 2, "missing script"),
        (("--commits", "..HEAD", "train.py"), 2, "give two as A..B"),
        (("--commits", "narrow...HEAD", "train.py"), 2, "give two as A..B"),
        (("one.tally",), 2, "expected two traces"),
        (("a.tally", "b.tally", "--gpu", "H100-SXM"), 2, "apply to --commits only"),
    ],
)
def test_what_cannot_be_compared_is_said(
    words: tuple[str, ...], code: int, said: str, folder: Path
) -> None:
    done = diff(*words, cwd=folder)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback (most" not in done.stderr.split("Its last output")[0]
    assert is_clean(folder)


def test_outside_of_a_repository(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        warm(TALLY + END, "diff", "--commits", "A..B", "train.py"), cwd=tmp_path, text=True,
        capture_output=True, check=False,
        env=environment() | {"GIT_CEILING_DIRECTORIES": str(tmp_path.parent)},
    )  # fmt: skip
    assert done.returncode == 2
    assert "is not in a git repository" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_behind(number: int, folder: Path) -> None:
    (folder / "train.py").write_text("import time\nopen(__file__ + '.on', 'w')\ntime.sleep(99)\n")
    git("commit", "-qam", "slow", cwd=folder)
    write(folder, 256)
    temporary = folder.parent / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        cold(TALLY + END, "diff", "--commits", "HEAD..", "train.py"), cwd=folder,
        env=environment() | {"TMPDIR": str(temporary)}, stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    end = time.monotonic() + TIMEOUT_S
    while not list(temporary.glob("tally-diff-*/work/train.py")):
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, number)
    assert process.wait(TIMEOUT_S) in (130, -number)
    assert len(git("worktree", "list", cwd=folder).splitlines()) == 1
    assert not list(temporary.glob("tally-diff-*"))


@pytest.mark.thorough
def test_what_a_killed_process_left_is_removed(folder: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = folder.parent / f"tally-diff-{gone.pid}-x" / "work"
    git("worktree", "add", "-q", "--detach", str(left), "HEAD", cwd=folder)
    assert diff("--commits", "narrow..HEAD", *GPU, "train.py", "8", cwd=folder).returncode == 0
    assert not left.parent.exists()
    assert is_clean(folder)

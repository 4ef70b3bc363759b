"""The sweep's folder: one sweep at a time, the same one, and its results."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sweep.sweeps import definition
from torchtally.errors import UsageError
from torchtally.sweep.folder import open_folder
from torchtally.sweep.results import RunEnding, Status, read_ending

TWO = ("optimizer.lr=0.01,0.1",)
HOLDS = """
import sys
from pathlib import Path
from tests.sweep.sweeps import definition
from torchtally.sweep.folder import open_folder
with open_folder(Path(sys.argv[1]), definition(*sys.argv[2:]), resumes=False):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_sweep_is_kept_and_resumed(tmp_path: Path) -> None:
    with open_folder(tmp_path / "out", definition(*TWO), resumes=False) as folder:
        point = folder.definition.points[0]
        assert read_ending(folder.result(point)).status is Status.WAITING
        folder.begin(point)
        folder.note(point, RunEnding(status=Status.ENDED))
    for wanted in (definition(*TWO), None):
        with open_folder(tmp_path / "out", wanted, resumes=True) as folder:
            assert folder.definition == definition(*TWO)
            assert read_ending(folder.result(point)).status is Status.ENDED


def test_a_new_one_may_be_asked_to_resume(tmp_path: Path) -> None:
    """The same command line for the first time and after each kill."""
    with open_folder(tmp_path, definition(*TWO), resumes=True) as folder:
        assert folder.config.read_text() == definition(*TWO).toml


def test_a_sweep_is_not_written_over(tmp_path: Path) -> None:
    with open_folder(tmp_path, definition(*TWO), resumes=False):
        pass
    before = sorted(tmp_path.iterdir())
    with (
        pytest.raises(UsageError, match=r"holds a sweep of 2 runs. Continue it with --resume"),
        open_folder(tmp_path, definition(*TWO), resumes=False),
    ):
        pass
    with (
        pytest.raises(UsageError, match=r"(?s)another sweep.*a run here alone: optimizer.lr=0.5"),
        open_folder(tmp_path, definition("optimizer.lr=0.01,0.1,0.5"), resumes=True),
    ):
        pass
    assert sorted(tmp_path.iterdir()) == before


def test_other_things_are_let_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with (
        pytest.raises(UsageError, match=r"contains no sweep \(thesis.txt\)"),
        open_folder(tmp_path, definition(*TWO), resumes=True),
    ):
        pass
    with (
        pytest.raises(UsageError, match="no sweep to resume"),
        open_folder(tmp_path, None, resumes=True),
    ):
        pass


def test_one_that_was_killed_at_its_very_beginning(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("half")
    (tmp_path / ".lock").touch()
    (tmp_path / ".tally-0.tmp").touch()
    with open_folder(tmp_path, definition(*TWO), resumes=False) as folder:
        assert folder.config.read_text() == definition(*TWO).toml


@pytest.mark.thorough
def test_two_at_a_time_are_refused_and_a_killed_one_gives_it_free(tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path), *TWO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with (
            pytest.raises(UsageError, match="another sweep is running there"),
            open_folder(tmp_path, definition(*TWO), resumes=True),
        ):
            pass
    finally:
        other.kill()
        other.communicate()
    with open_folder(tmp_path, definition(*TWO), resumes=True):
        pass


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(UsageError, match="cannot be written"),
        open_folder(tmp_path / "file" / "out", definition(*TWO), resumes=False),
    ):
        pass


def test_a_full_disk_is_said_and_leaves_the_old_definition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_folder(tmp_path, definition(*TWO), resumes=False):
        pass
    before = (tmp_path / "sweep.json").read_bytes()

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with (
            pytest.raises(UsageError, match="No space left on device"),
            open_folder(tmp_path, definition(*TWO), resumes=True),
        ):
            pass
    assert (tmp_path / "sweep.json").read_bytes() == before
    assert not list(tmp_path.glob(".tally-*"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"status":', '{"status": "odd"}', "[" * 100_000])
def test_a_damaged_result_is_none(tmp_path: Path, text: str) -> None:
    with open_folder(tmp_path, definition(*TWO), resumes=False) as folder:
        point = folder.definition.points[0]
        folder.begin(point)
        (folder.run(point) / "result.json").write_text(text)
        assert read_ending(folder.result(point)).status is Status.WAITING


def test_checkpoints_are_let_go_but_not_through_a_link(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "weights").touch()
    with open_folder(tmp_path / "out", definition(*TWO), resumes=False) as folder:
        first, second = folder.definition.points
        for point in (first, second):
            folder.begin(point)
        (folder.run(first) / "checkpoints" / "step-1").mkdir(parents=True)
        (folder.run(second) / "checkpoints").symlink_to(elsewhere)
        folder.remove_checkpoints(first)
        folder.remove_checkpoints(second)
        assert not (folder.run(first) / "checkpoints").exists()
    assert (elsewhere / "weights").exists()


def test_results_are_json(tmp_path: Path) -> None:
    with open_folder(tmp_path, definition(*TWO), resumes=False) as folder:
        folder.write_results('{"runs": []}')
    assert json.loads((tmp_path / "results.json").read_text()) == {"runs": []}

"""The folder of a run: made anew, never in the place of anything that is not a run's."""

import os
from pathlib import Path

import pytest

from torchtally.errors import UsageError
from torchtally.isolation.journal import JOURNAL, MAGIC, Journal
from torchtally.isolation.overlay import Overlay


def test_what_an_earlier_run_has_left_is_removed(tmp_path: Path):
    folder = tmp_path / "run.files"
    Overlay(str(folder), str(tmp_path)).close()
    (folder / "ckpt.pt").write_text("of the earlier run")
    Overlay(str(folder), str(tmp_path)).close()
    assert os.listdir(folder) == [JOURNAL]
    assert os.listdir(tmp_path) == ["run.files"]


def test_a_run_beside_another_has_a_folder_of_its_own(tmp_path: Path):
    folder = str(tmp_path / "run.files")
    overlays = [Overlay(folder, str(tmp_path)) for _ in range(3)]
    assert [overlay.folder for overlay in overlays] == [folder, f"{folder}.2", f"{folder}.3"]
    for overlay in overlays:
        overlay.close()
    assert Overlay(folder, str(tmp_path)).folder == folder


@pytest.mark.parametrize("content", [{"weights.pt": "mine"}, {JOURNAL: "my diary\n"}])
def test_a_folder_of_the_users_is_not_touched(tmp_path: Path, content: dict[str, str]):
    folder = tmp_path / "run.files"
    folder.mkdir()
    for name, text in content.items():
        (folder / name).write_text(text)
    with pytest.raises(UsageError, match="was not created by tally"):
        Overlay(str(folder), str(tmp_path))
    assert {path.name: path.read_text() for path in folder.iterdir()} == content


def test_what_a_killed_run_was_setting_up_is_removed(tmp_path: Path):
    """A run that goes on has its lock, a user's folder no mark."""
    folder = tmp_path / "run.files"
    living = Journal(str(make(tmp_path, "run.files.0badcafe")))
    for name in ("run.files.01234567", "run.files.2", "run.files.notours!"):
        (make(tmp_path, name) / JOURNAL).write_bytes(MAGIC)
    make(tmp_path, "run.files.89abcdef")
    os.utime(tmp_path / "run.files.89abcdef", (0, 0))
    (make(tmp_path, "run.files.76543210") / "weights.pt").write_text("mine")
    Overlay(str(folder), str(tmp_path)).close()
    assert sorted(os.listdir(tmp_path)) == [
        "run.files", "run.files.0badcafe", "run.files.2", "run.files.76543210",
        "run.files.notours!",
    ]  # fmt: skip
    living.close()


def make(root: Path, name: str) -> Path:
    (root / name).mkdir()
    return root / name


def test_a_file_by_that_name_is_not_touched(tmp_path: Path):
    (tmp_path / "run.files").write_text("mine")
    with pytest.raises(UsageError):
        Overlay(str(tmp_path / "run.files"), str(tmp_path))
    assert (tmp_path / "run.files").read_text() == "mine"


def test_a_place_where_nothing_can_be_made_is_named(tmp_path: Path):
    with pytest.raises(UsageError, match="--writes real"):
        Overlay(str(tmp_path / "no" / "such" / "run.files"), str(tmp_path))

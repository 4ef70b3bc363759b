"""What may not be written, or is not there any more, is an error and never passed over."""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.train.checkpoints.killing import answer_of
from tests.train.checkpoints.mounts import MS_RDONLY, MS_REMOUNT, has_own_mounts, mount
from tests.train.checkpoints.saving import check_contents, names, save, taken
from torchtally.checkpoints.folder import Checkpoints
from torchtally.errors import CheckpointError, UsageError

NOBODY = 65534


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that every user may reach: pytest's own are the user's alone."""
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
        for path, _, _ in os.walk(folder):
            os.chmod(path, 0o755)


def _by_nobody(run: Path) -> dict[str, str]:
    """What each use of a checkpoints' folder says to a user that may not write there."""
    if os.getuid() == 0:
        with suppress(PermissionError):  # root without its capabilities may do no more than others
            os.setgid(NOBODY)
            os.setuid(NOBODY)
    uses = {
        "save": lambda: save(run, 2),
        "prune": lambda: Checkpoints(run).prune(0, None),
        "aside": lambda: Checkpoints(run).set_aside(1),
        "clear": lambda: Checkpoints(run).clear(),
        "steps": lambda: Checkpoints(run).steps(),
        "manifest": lambda: Checkpoints(run).manifest(1),
        "lock": lambda: Checkpoints(run).lock().__enter__(),
    }
    outcomes = {}
    for name, use in uses.items():
        try:
            use()
        except CheckpointError as error:
            outcomes[name] = str(error)
    return outcomes


def test_a_folder_that_may_not_be_written(open_folder: Path) -> None:
    save(open_folder, 1)
    for path in (Checkpoints(open_folder).path, Checkpoints(open_folder).path / "step-00000001"):
        path.chmod(0o555)
    answer = answer_of(_by_nobody, open_folder)
    assert answer.keys() == {"save", "prune", "aside", "clear"}
    for text in answer.values():
        assert text.startswith(f"{open_folder}/checkpoints/")
        assert text.endswith("Permission denied. Let this user write there, and resume.")
    check_contents(open_folder, 1)


@pytest.mark.parametrize("closed", ["", "checkpoints"])
def test_a_folder_that_may_not_be_read(open_folder: Path, closed: str) -> None:
    save(open_folder, 1)
    (open_folder / closed).chmod(0)
    answer = answer_of(_by_nobody, open_folder)
    assert answer.keys() >= {"save", "steps", "manifest", "lock", "prune", "aside", "clear"}
    assert all("Permission denied" in value for value in answer.values())


def _read_only(folder: Path) -> Any:
    if not (has_own_mounts() and mount(folder, "size=4m")):
        return None
    save(folder, 1)
    assert mount(folder, "", MS_REMOUNT | MS_RDONLY)
    with pytest.raises(CheckpointError) as refused:
        save(folder, 2)
    check_contents(folder, 1)
    return str(refused.value)


def test_a_file_system_that_may_only_be_read(tmp_path: Path) -> None:
    said = answer_of(_read_only, tmp_path)
    if said is None:
        pytest.skip("this user may not mount a file system of its own")
    assert "Read-only file system" in said


@pytest.mark.parametrize("at_call", range(4))
def test_a_directory_that_vanishes(
    tmp_path: Path, at_call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    native, calls = os.write, iter(range(at_call))

    def write(handle: int, part: Any) -> int:
        if next(calls, None) is None:
            shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)
        return native(handle, part)

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(CheckpointError, match="No such file or directory"):
        save(tmp_path, 1)
    monkeypatch.undo()
    save(tmp_path, 1)
    check_contents(tmp_path, 1)


# Who else is here --------------------------------------------------------------------------------


def _lock(run: Path) -> str:
    try:
        with Checkpoints(run).lock():
            return ""
    except UsageError as error:
        return str(error)


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with Checkpoints(tmp_path).lock():
        assert "another run is training there" in answer_of(_lock, tmp_path)
        save(tmp_path, 1)
    assert answer_of(_lock, tmp_path) == ""


# Links -------------------------------------------------------------------------------------------


def test_a_link_to_the_folder_is_followed_where_that_is_asked_for(tmp_path: Path) -> None:
    elsewhere, run = tmp_path / "elsewhere", tmp_path / "run"
    elsewhere.mkdir()
    run.mkdir()
    (run / "checkpoints").symlink_to(elsewhere)
    for use in (lambda: save(run, 1), lambda: taken(run), Checkpoints(run).lock().__enter__):
        with pytest.raises(CheckpointError, match="follows_links"):
            use()
    assert list(elsewhere.iterdir()) == []
    followed = Checkpoints(run, follows_links=True)
    with followed.lock():
        assert followed.steps() == []


def test_a_link_to_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").symlink_to(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="symbolic link"):
        Checkpoints(tmp_path).steps()


@pytest.mark.parametrize("name", ["", "manifest.json", "model.safetensors"])
def test_links_within_the_folder_are_not_followed(tmp_path: Path, name: str) -> None:
    save(tmp_path, 1)
    own = Checkpoints(tmp_path).path / "step-00000001" / name
    moved = tmp_path / "moved"
    own.rename(moved)
    own.symlink_to(moved)
    with pytest.raises(CheckpointError, match=r"symbolic link|is not a regular file"):
        taken(tmp_path)


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors"])
def test_a_pipe_is_no_file_and_nobody_waits_for_it(tmp_path: Path, name: str) -> None:
    save(tmp_path, 1)
    own = Checkpoints(tmp_path).path / "step-00000001" / name
    own.unlink()
    os.mkfifo(own)
    with pytest.raises(CheckpointError, match="is not a regular file"):
        taken(tmp_path)


def test_what_is_linked_to_is_not_removed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    save(tmp_path, 1)
    trap = Checkpoints(tmp_path).path / ".old-1-0123456789abcdef"
    trap.symlink_to(precious)
    with pytest.raises(CheckpointError, match="symbolic link"):
        Checkpoints(tmp_path).clean()
    trap.unlink()
    trap.mkdir()
    (trap / "inner").symlink_to(precious)
    Checkpoints(tmp_path).clean()
    assert (precious / "file").read_text() == "mine"
    assert names(tmp_path) == ["step-00000001"]


def test_names_that_are_taken_are_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    target = tmp_path / "target"
    target.write_text("mine")
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * 2 * size)
    new = Checkpoints(tmp_path).path / f".new-2-{'0' * 16}"
    new.mkdir()
    with pytest.raises(CheckpointError, match="File exists"):
        save(tmp_path, 2)
    (new / "model.safetensors").symlink_to(target)
    inner = Checkpoints(tmp_path).join(new.name)
    with inner, pytest.raises(CheckpointError, match="File exists"):
        inner.write("model.safetensors", [b"yours"], 5)
    assert target.read_text() == "mine"


def test_modes_are_the_users_own(tmp_path: Path) -> None:
    former = os.umask(0o027)
    try:
        save(tmp_path, 1)
    finally:
        os.umask(former)
    own = Checkpoints(tmp_path).path / "step-00000001"
    assert own.stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in own.iterdir()} == {0o640}

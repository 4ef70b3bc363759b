"""A full disk, at every call of a save: the old checkpoints stay, and the error says what to do."""

import errno
import os
import re
import resource
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.train.checkpoints.injection import TAKING_SPACE, Faults, failing
from tests.train.checkpoints.killing import answer_of
from tests.train.checkpoints.mounts import MS_REMOUNT, has_own_mounts, mount
from tests.train.checkpoints.saving import check_all_whole, check_contents, names, save
from torchtally.checkpoints.folder import NAMED, UNFINISHED, Checkpoints
from torchtally.errors import CheckpointError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def saved_with(
    run: Path, step: int, error: int, *, at_call: int, **which: Any
) -> tuple[Faults, str]:
    """The faults that came while a step was saved, and what was said."""
    with failing(at_call, error, **which) as faults:
        try:
            save(run, step)
        except CheckpointError as refused:
            return faults, str(refused)
    return faults, ""


def goes_on(run: Path, step: int) -> None:
    """What is left is removed by the next training, and it can save: this step, or the one after
    where it has its name.
    """
    assert all(NAMED.fullmatch(name) or UNFINISHED.fullmatch(name) for name in names(run))
    Checkpoints(run).clean()
    step += step in Checkpoints(run).steps()
    save(run, step)
    check_contents(run, step)
    assert all(map(NAMED.fullmatch, names(run)))
    assert len(names(run)) == 2


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize(
    ("error", "every"), [(errno.ENOSPC, 1), (errno.EIO, 2), (errno.EDQUOT, 5), (errno.EFBIG, 5)]
)
def test_each_call_fails_once(in_memory: Path, error: int, every: int) -> None:
    save(in_memory, 1)
    save(in_memory, 2)
    for step in count(3, 2):
        at_call = every * (step - 3) // 2
        faults, said = saved_with(in_memory, step, error, at_call=at_call)
        if not faults.failed:
            assert said == ""
            assert at_call > 27
            return
        where = Path(said.split(": ")[0])
        own = Checkpoints(in_memory).path
        assert own in (where, *where.parents) or where in own.parents
        assert os.strerror(error) in said, faults
        if faults.failed == ["write"] and error in FULL:
            assert re.search(r", for [\d.]+ (B|KiB)\. Free some space and resume\.$", said)
        assert {step - 2, step - 1} & {*check_all_whole(in_memory)}
        goes_on(in_memory, step)


@pytest.mark.thorough
def test_there_is_no_space_any_more_from_some_call_on(in_memory: Path) -> None:
    save(in_memory, 1)
    save(in_memory, 2)
    for step in count(3, 2):
        faults, said = saved_with(
            in_memory,
            step,
            errno.ENOSPC,
            at_call=(step - 3) // 2,
            names=TAKING_SPACE,
            ever_after=True,
        )
        if not faults.failed:
            assert step > 27
            return
        assert "No space left on device" in said
        assert {step - 2, step - 1} & {*check_all_whole(in_memory)}
        goes_on(in_memory, step)


def test_another_file_system(in_memory: Path) -> None:
    save(in_memory, 1)
    _, said = saved_with(in_memory, 2, errno.EXDEV, at_call=0, names=("rename",))
    assert said.endswith("step-00000002: cannot be put in place: Invalid cross-device link.")
    assert check_all_whole(in_memory) == [1]
    assert names(in_memory) == ["step-00000001"]


def test_removing_the_oldest_fails(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step)
    with (
        failing(0, errno.EACCES, names=("unlink",)),
        pytest.raises(CheckpointError, match=r"cannot be removed: Permission denied"),
    ):
        save(tmp_path, 3)
    assert check_all_whole(tmp_path) == [3, 2]
    goes_on(tmp_path, 4)


def test_writes_that_take_a_few_bytes_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native = os.write
    monkeypatch.setattr(os, "write", lambda handle, part: native(handle, part[:37]))
    save(tmp_path, 1, elements=50)
    check_contents(tmp_path, 1)


# Disks that are full -----------------------------------------------------------------------------


def _on_small_disks(folder: Path) -> list[Any] | None:
    """(KiB, what is said) of saves on disks of each size; None where nothing can be mounted."""
    if not (has_own_mounts() and mount(folder, "size=4m")):
        return None
    save(folder, 1)
    outcomes: list[Any] = []
    used_kib = sum(
        -(-path.stat().st_size // 4096) * 4 for path in folder.rglob("*") if path.is_file()
    )
    for size_kib in range(used_kib, 200, 8):
        assert mount(folder, f"size={size_kib}k", MS_REMOUNT)
        try:
            save(folder, 2)
        except CheckpointError as error:
            outcomes.append((size_kib, str(error)))
            assert check_all_whole(folder) == [1]
            assert names(folder) == ["step-00000001"]
        else:
            outcomes.append((size_kib, ""))
            assert check_all_whole(folder) == [2, 1]
            return outcomes
    return outcomes


@pytest.mark.thorough("test_each_call_fails_once beside it")
def test_small_disks_of_every_size(tmp_path: Path) -> None:
    answer = answer_of(_on_small_disks, tmp_path)
    if answer is None:
        pytest.skip("this user may not mount a file system of its own")
    *full, (_, said) = answer
    assert said == ""
    assert len(full) >= 2
    for _, text in full:
        assert "No space left on device, for " in text
        assert f"{tmp_path}/checkpoints/.new-2-" in text
        assert text.endswith(" Free some space and resume.")


def _with_limits(folder: Path) -> list[str]:
    """What saves say where files may have so many bytes; SIGXFSZ is ignored by Python."""
    save(folder, 1)
    largest = max(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    outcomes = []
    for limit in (0, 1, 100, largest // 2, largest - 100, largest + 100):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            save(folder, 2)
        except CheckpointError as error:
            outcomes.append(str(error))
            assert check_all_whole(folder) == [1]
            assert names(folder) == ["step-00000001"]
    assert check_all_whole(folder) == [2, 1]
    return outcomes


@pytest.mark.thorough("test_each_call_fails_once beside it")
def test_files_that_may_not_grow(tmp_path: Path) -> None:
    answer = answer_of(_with_limits, tmp_path)
    assert len(answer) == 5
    assert all("File too large, for " in value for value in answer)

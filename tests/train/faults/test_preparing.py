"""`tally data prepare` that is killed, or whose disk is full: one whole data set or the other."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.train.faults.killing import files_of, text_in
from torchtally.errors import UsageError
from torchtally.train.data.description import NAME
from torchtally.train.data.prepare import PrepareRequest, prepare

OLD, NEW = b"the old text of it\n" * 60, b"and a newer one\n" * 90
LIMIT_S = 120


def python(*args: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, timeout=LIMIT_S, **options
    )


# Killed ----------------------------------------------------------------------------------------


def test_a_kill_at_any_time_leaves_one_data_set_whole(tmp_path: Path) -> None:
    """At every call that changes the folder, and at twenty random times."""
    done = python("-m", "tests.train.faults.killing", str(tmp_path))
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    for before in ("old", "none"):
        states = loaded[before]
        assert set(states) == {before, "new"}
        assert all(then != before or now == before for now, then in pairwise(states))
    assert len(loaded["random"]) == 20
    assert {status for status, _ in loaded["random"]} <= {-signal.SIGKILL, 0}
    assert {value for _, value in loaded["random"]} <= {"old", "new"}


def test_shards_of_the_same_names_would_be_mixed(tmp_path: Path) -> None:
    """The check above can fail."""
    done = python("-m", "tests.train.faults.killing", str(tmp_path), "same-names")
    assert done.returncode == 1
    assert "AssertionError" in done.stderr


# A full disk -----------------------------------------------------------------------------------


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    old, new = tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_bytes(OLD)
    new.write_bytes(NEW)
    return old, new


def wanted(text: Path, out: Path) -> PrepareRequest:
    return PrepareRequest((str(text),), str(out), shard_tokens=600, is_overwriting=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def failing(native: Callable[..., Any], calls: "count[int]", at: int) -> Callable[..., Any]:
    """The same function, but the so many-th of all such calls finds no space."""

    def call(*args: Any, **options: Any) -> Any:
        if next(calls) == at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), args[0])
        return native(*args, **options)

    return call


def refusal(wanted: PrepareRequest) -> str:
    try:
        prepare(wanted)
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.thorough
@pytest.mark.parametrize("has_old", [True, False])
def test_no_space_at_any_call_leaves_what_was_there(
    has_old: bool, tmp_path: Path, texts: tuple[Path, Path]
) -> None:
    """Names and bytes; or the new data is whole and the message says so."""
    old, new = texts
    refused = 0
    for at in count():
        out = tmp_path / f"out-{at}"
        if has_old:
            prepare(wanted(old, out))
        before = contents(out)
        calls = count()
        with pytest.MonkeyPatch.context() as patch:
            for name in ("open", "fsync", "replace", "unlink", "mkdir"):
                patch.setattr(os, name, failing(getattr(os, name), calls, at))
            said = refusal(wanted(new, out))
        refused += said != ""
        assert (said != "") == ("No space left on device" in said)
        if said and "new data is whole" not in said:
            assert contents(out) == before
            continue
        assert text_in(out) == NEW
        if next(calls) <= at:  # no call was left to fail
            break
    assert refused > 10


def test_a_limit_of_file_size_is_one_line_and_an_exit_status(
    tmp_path: Path, texts: tuple[Path, Path]
) -> None:
    old, _ = texts
    out = tmp_path / "out"
    prepare(wanted(old, out))
    before = contents(out)
    large = tmp_path / "large.txt"
    large.write_bytes(NEW * 100)
    done = python(
        "-m", "torchtally", "data", "prepare", str(large), "--out", str(out), "--overwrite",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)),
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"tally: error: {out}: cannot be written (File too large). The previous contents of {out} "
        "are unchanged."
    ]
    assert contents(out) == before


ON_A_SMALL_DISK = """\
import os, subprocess, sys
from pathlib import Path
from tests.train.faults.test_preparing import contents, wanted
from torchtally.train.data.prepare import prepare
old, large, disk = map(Path, sys.argv[1:])
if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk]).returncode:
    sys.exit(77)
out = disk / "out"
prepare(wanted(old, out))
before = contents(out)
tally = [sys.executable, "-m", "torchtally", "data", "prepare", "--out", out, "--overwrite"]
for given in (large, "-"):
    with large.open("rb") as stdin:
        done = subprocess.run([*tally, given], stdin=stdin, capture_output=True, text=True)
    print(done.returncode, done.stderr, end="")
    assert contents(out) == before
prepare(wanted(old, out))
"""


@pytest.mark.thorough
def test_a_disk_that_is_full(tmp_path: Path, texts: tuple[Path, Path]) -> None:
    """A real one of 256 KiB: of a file, and of standard input, which is kept there meanwhile."""
    large, disk = tmp_path / "large.txt", tmp_path / "disk"
    large.write_bytes(NEW * 300)
    disk.mkdir()
    command = [sys.executable, "-c", ON_A_SMALL_DISK, str(texts[0]), str(large), str(disk)]
    try:
        done = subprocess.run(
            ["unshare", "--user", "--map-root-user", "--mount", *command],
            capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("there is no `unshare` to mount a small disk with")
    if "unshare failed" in done.stderr or done.returncode == 77:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    out = disk / "out"
    state = f"The previous contents of {out} are unchanged."
    said = f"cannot be written (No space left on device). {state}"
    assert [line.split(": ", 3)[0] for line in done.stdout.splitlines()] == ["2 tally"] * 2
    assert [line.split(": ", 3)[3] for line in done.stdout.splitlines()] == [said] * 2


# A description that is damaged -----------------------------------------------------------------


def test_a_damaged_description_can_be_overwritten(tmp_path: Path, texts: tuple[Path, Path]) -> None:
    old, new = texts
    out = tmp_path / "out"
    prepare(wanted(old, out))
    (out / NAME).write_bytes((out / NAME).read_bytes()[:-20])
    with pytest.raises(UsageError, match="not a whole description"):
        prepare(PrepareRequest((str(new),), str(out)))
    prepare(wanted(new, out))
    assert text_in(out) == NEW
    assert files_of(out) <= set(os.listdir(out))

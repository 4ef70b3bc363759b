"""Figures of a run that the next one is compared with."""

import os
from pathlib import Path

import msgspec
import pytest

from tests.report.test_text import realistic
from tests.views.stopwatch import DATASHEET
from torchtally.brief.last_run import figures_of, keep, last_run_place, load
from torchtally.files.user_cache import cache_folder, make_room
from torchtally.ledger import account


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_what_is_kept_is_what_is_loaded() -> None:
    ledger = account(realistic(), roofline=DATASHEET)
    place = last_run_place("/a/train.py", "1xH100-SXM")
    assert load(place) is None
    run = figures_of(ledger, 1.5)
    keep(run, place)
    assert load(place) == run
    sums = {line: total.seconds for line, total in ledger.by_line().items() if line is not None}
    assert {line: total.seconds for line, total in run.sums().items()} == sums


def test_a_script_has_a_file_for_each_kind_of_gpus() -> None:
    names = (("/a/train.py", "1xH100-SXM"), ("/a/train.py", "8xH100-SXM"), ("/b.py", "1xH100-SXM"))
    assert len({last_run_place(*each) for each in names}) == 3


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"kind":"another"}', b"[1]"])
def test_a_damaged_file_is_none_and_is_replaced(content: bytes, cache: Path) -> None:
    place = last_run_place("/a/train.py", "1xH100-SXM")
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    assert load(place) is None
    run = figures_of(account(realistic()), 0.0)
    keep(run, place)
    assert load(place) == run


def test_a_file_of_another_format_is_none() -> None:
    place = last_run_place("/a/train.py", "1xH100-SXM")
    run = figures_of(account(realistic()), 0.0)
    keep(msgspec.structs.replace(run, format=99), place)
    assert load(place) is None


def test_a_cache_that_cannot_be_written_is_no_error(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "file"))
    place = last_run_place("/a/train.py", "1xH100-SXM")
    keep(figures_of(account(realistic()), 0.0), place)
    assert load(place) is None


def test_files_that_are_oldest_make_room() -> None:
    folder = cache_folder("test")
    folder.mkdir(parents=True)
    for age in range(4):
        file = folder / str(age)
        file.write_bytes(bytes(10))
        os.utime(file, (1000 - age, 1000 - age))
    make_room(folder / "3", 25)
    assert {file.name for file in folder.iterdir()} == {"0", "1", "3"}  # the one just written stays

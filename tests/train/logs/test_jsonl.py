"""log.jsonl: what is written, what survives being killed, and what resuming takes back."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.warm import warm
from torchtally.checkpoints.plain import as_json, from_json
from torchtally.errors import UsageError
from torchtally.train.logs.jsonl import NAME, JsonLines, read_log
from torchtally.train.logs.log import SCHEMA_VERSION, RunHeader
from torchtally.train.logs.names import LOSS, MEANINGS
from torchtally.train.logs.together import logs

HEADER = RunHeader(config={"seed": 1, "to": "wandb", "at": Path("a")}, mfu_convention="x")


def opened(folder: Path, said: list[str] | None = None, **options: object) -> JsonLines:
    said = [] if said is None else said
    log = JsonLines(folder, say=said.append, clock=lambda: 5.0, **options)  # type: ignore[arg-type]
    log.begin(HEADER)
    return log


def written(folder: Path, *losses: float) -> Path:
    log = opened(folder)
    for step, loss in enumerate(losses):
        log.write(step, {LOSS: loss})
    log.close()
    return folder / NAME


def test_first_line_says_what_the_run_is(tmp_path: Path) -> None:
    first = json.loads(written(tmp_path, 2.0).read_text().splitlines()[0])
    assert (first["kind"], first["schema_version"]) == ("run", SCHEMA_VERSION)
    assert first["config"] == {"seed": 1, "to": "wandb", "at": "a"}
    assert first["mfu_convention"] == "x"
    assert set(first["versions"]) >= {"torchtally", "torch", "python", "numpy", "cuda"}
    assert first["units"][LOSS] == MEANINGS[LOSS]["unit"]


def test_a_record_is_a_line_in_the_order_given_and_there_at_once(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.write(7, {"b": 1, "a": 2.5, "c": "text\n"})
    line = (tmp_path / NAME).read_text().splitlines()[1]
    assert line == '{"step": 7, "unix_s": 5.0, "b": 1, "a": 2.5, "c": "text\\n"}'
    log.close()


@given(st.floats())
def test_any_float_comes_back(value: float) -> None:
    text = json.dumps(as_json(value), allow_nan=False)
    read_back = from_json(json.loads(text))
    assert read_back == value or (math.isnan(read_back) and math.isnan(value))


def test_nan_is_json_and_read_back(tmp_path: Path) -> None:
    path = written(tmp_path, math.nan, -math.inf, 1.0)
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda how: pytest.fail(how))
    (_, nan), (_, infinite), (_, one) = read_log(path).series(LOSS)
    assert math.isnan(nan)
    assert (infinite, one) == (-math.inf, 1.0)


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_torn_last_line_is_cut_off_with_a_note(tmp_path: Path, cut: int) -> None:
    path = written(tmp_path, 3.0, 2.0)
    os.truncate(path, path.stat().st_size - cut)
    assert read_log(path).series(LOSS) == ((0, 3.0),)
    said: list[str] = []
    log = opened(tmp_path, said, resumed_at=1)
    log.write(1, {LOSS: 1.5})
    log.close()
    assert len(said) == 1
    assert "incomplete record" in said[0]
    assert read_log(path).series(LOSS) == ((0, 3.0), (1, 1.5))


def test_a_torn_first_line_begins_anew(tmp_path: Path) -> None:
    path = written(tmp_path)
    os.truncate(path, 30)
    opened(tmp_path).close()
    assert read_log(path).records == ()


def test_resuming_takes_back_the_steps_that_are_done_again(tmp_path: Path) -> None:
    path = written(tmp_path, 4.0, 3.0, 2.0)
    log = opened(tmp_path, resumed_at=1)
    log.write(1, {LOSS: 2.9})
    log.close()
    assert read_log(path).series(LOSS) == ((0, 4.0), (1, 2.9))
    assert json.loads(path.read_text().splitlines()[4])["kind"] == "resumed"


def test_the_log_of_another_run_is_not_touched(tmp_path: Path) -> None:
    path = written(tmp_path, 4.0)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="another run"):
        opened(tmp_path)
    assert path.read_bytes() == before


def test_the_log_of_another_run_is_replaced_when_asked(tmp_path: Path) -> None:
    path = written(tmp_path, 4.0)
    opened(tmp_path, replaces=True).close()
    assert read_log(path).records == ()


@pytest.mark.parametrize(
    "text", ["hello", "hello\n", '{"a": 1}\n', "[" * 9999 + "\n", "\x00\xff\n"]
)
@pytest.mark.parametrize("resumed_at", [None, 3])
def test_what_is_no_log_is_not_touched(tmp_path: Path, text: str, resumed_at: int | None) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(UsageError, match="not the log"):
        opened(tmp_path, resumed_at=resumed_at, replaces=True)
    assert (tmp_path / NAME).read_text() == text


def test_a_schema_yet_to_come_is_refused(tmp_path: Path) -> None:
    line = {"kind": "run", "schema_version": SCHEMA_VERSION + 1}
    (tmp_path / NAME).write_text(json.dumps(line) + "\n")
    for use in (lambda: read_log(tmp_path), lambda: opened(tmp_path, resumed_at=0)):
        with pytest.raises(UsageError, match="newer"):
            use()


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, 4.0, 3.0)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], "?\n", lines[2]]))
    with pytest.raises(UsageError, match=r"log\.jsonl:2:"):
        read_log(path)


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(UsageError, match="another run is writing"):
        opened(tmp_path, resumed_at=0)
    log.close()
    opened(tmp_path, resumed_at=0).close()


def test_a_write_that_fails_half_way_leaves_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path)
    native, calls = os.write, []

    def full(file: int, data: bytes) -> int:
        calls.append(file)
        if len(calls) == 1:
            return native(file, bytes(data[:9]))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        log.write(0, {LOSS: 2.0})
    monkeypatch.setattr(os, "write", native)
    log.write(1, {LOSS: 1.0})
    log.close()
    assert read_log(tmp_path).series(LOSS) == ((1, 1.0),)


def test_a_full_disk_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    native = os.write

    def full(file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    with logs(tmp_path, HEADER, say=said.append) as log:
        monkeypatch.setattr(os, "write", full)
        log.write(0, {LOSS: 3.0})
        log.write(1, {LOSS: 2.0})
        monkeypatch.setattr(os, "write", native)
        log.write(2, {LOSS: 1.0})
    assert len(said) == 1
    assert "No space left" in said[0]
    assert read_log(tmp_path).series(LOSS) == ((2, 1.0),)


def test_a_folder_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        opened(tmp_path / "file" / "run")


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    (tmp_path / NAME).symlink_to(tmp_path / "other")
    with pytest.raises(UsageError, match="cannot be written"):
        opened(tmp_path)


KILLED = """
import sys, os, signal
sys.path[:0] = {path!r}
from pathlib import Path
from torchtally.train.logs.jsonl import JsonLines
from torchtally.train.logs.log import RunHeader
log = JsonLines(Path({folder!r}), say=print)
log.begin(RunHeader(config={{}}))
for step in range(50):
    log.write(step, {{"train/loss": 1.0}})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_written_outlives_kill(tmp_path: Path) -> None:
    code = KILLED.format(path=sys.path, folder=str(tmp_path))
    done = subprocess.run(warm(code), check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(read_log(tmp_path).records) == 50
    opened(tmp_path, resumed_at=50).close()

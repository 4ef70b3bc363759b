"""Data that is bad, that changes under a training, or that may not be read."""

import os
import resource
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.train.data.files import LETTERS, llm_c, packed, write_raw
from tests.train.training import language, run
from torchtally.cli import main
from torchtally.errors import UsageError
from torchtally.train.data import batches
from torchtally.train.data.sniff import token_file
from torchtally.train.data.token_data import Read, TokenData
from torchtally.train.data.token_file import Format, TokenFile, read_beginning
from torchtally.train.logs import names
from torchtally.train.logs.jsonl import read_log
from torchtally.train.outcome import StepResult
from torchtally.train.tasks import TrainBatch
from torchtally.train.trainer import trainer_of

IDS = [number % 257 for number in range(3000)]
VOCABULARY, SEQUENCE = 257, 32
"""Of the tests' language task."""


# Before the first step -------------------------------------------------------------------------

BAD = {
    "zero-length": (b"", 0),
    "header cut short": (llm_c(IDS)[:100], 100),
    "no tokens": (llm_c([]), 1024),
    "truncated": (llm_c(IDS)[:-7], 8),
    "count too large": (llm_c(IDS, count=3001), 8),
    "count too small": (llm_c(IDS, count=2999), 8),
    "count negative": (llm_c(IDS, count=-1), 8),
    "wrong version": (llm_c(IDS, version=9), 4),
    "a token too large": (llm_c([*IDS, 257]), 1024 + 2 * 3000),
    "wrong dtype": (llm_c(IDS, dtype="uint32"), 8),
    "other byte order": (packed(IDS, "uint16", ">"), 4),
    "wide ids, narrow dtype": (packed(IDS, "uint32"), 2),
    "half an id": (packed(IDS, "uint16") + b"\0", 6000),
    "shorter than a window": (llm_c(IDS[:SEQUENCE]), 1024 + 2 * SEQUENCE),
}


@pytest.mark.parametrize("fault", BAD)
@pytest.mark.parametrize("read", Read)
def test_a_bad_shard_is_refused_before_the_first_step(
    fault: str, read: Read, tmp_path: Path
) -> None:
    """By file and byte, though it is the last of three; nothing was computed."""
    content, byte = BAD[fault]
    bad = tmp_path / "bad.bin"
    bad.write_bytes(content)
    good = write_raw(tmp_path / "good.bin", IDS)
    dtype = None if content[:4] == llm_c([])[:4] else "uint16"
    train = [good, good, str(bad)] if dtype else [str(bad)]
    config = language(tmp_path, data={"train": train, "dtype": dtype, "read": read.value})
    with pytest.raises(UsageError, match=rf"bad\.bin: byte {byte}: "):
        trainer_of(config)


def test_the_command_says_so_in_a_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.bin").write_bytes(llm_c(IDS, count=9999))
    (tmp_path / "run.toml").write_text(
        f'steps = 2\nbatch = 2\ndevice = "cpu"\n[data]\ntrain = ["{tmp_path}/bad.bin"]\n'
        f'[model]\npreset = "llama-1m"\n[log]\nfolder = "{tmp_path}/run"\n'
    )
    assert main(["train", str(tmp_path / "run.toml")]) == 2
    assert capfd.readouterr().err.startswith(
        f"tally: error: {tmp_path}/bad.bin: byte 8: the header"
    )
    with pytest.raises(UsageError):
        read_log(tmp_path / "run")


# While it is read ------------------------------------------------------------------------------


def windows(data: TokenData, *numbers: int) -> list[list[int]]:
    out = np.empty((len(numbers), data.width), np.int64)
    data.read(np.array(numbers, np.int64), out)
    return out.tolist()


def opened(path: Path, read: Read, vocabulary_size: int | None = VOCABULARY) -> TokenData:
    file = token_file(str(path), dtype="uint16")
    return TokenData([file], sequence=4, read=read, vocabulary_size=vocabulary_size)


@pytest.mark.parametrize("read", Read)
def test_a_file_that_is_renamed_unlinked_or_forbidden_stays_what_it_was(
    read: Read, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    write_raw(path, IDS)
    with opened(path, read) as data:
        expected = windows(data, 0, 700)
        path.chmod(0)
        assert windows(data, 0, 700) == expected
        os.replace(write_raw(tmp_path / "b", [1] * 10), path)
        assert windows(data, 0, 700) == expected
        path.unlink()
        assert windows(data, 0, 700) == expected


@pytest.mark.parametrize("read", Read)
def test_ids_that_are_written_later_are_seen_when_they_are_read(read: Read, tmp_path: Path) -> None:
    """As are those that were there and not looked at: of a large file 99 %."""
    path = tmp_path / "a"
    write_raw(path, IDS)
    with opened(path, read) as data:
        windows(data, 3)
        with path.open("r+b") as file:
            file.seek(2 * 17)
            file.write(struct.pack("<H", 257))
        windows(data, 2)
        with pytest.raises(
            UsageError, match=r"a: byte 34: token 17 is 257, outside of .* of 257.*--all"
        ):
            windows(data, 2, 4, 3)
    with opened(path, read, vocabulary_size=None) as data:
        assert windows(data, 4) == [[16, 257, 18, 19, 20]]


@given(st.sampled_from(sorted(LETTERS)), st.integers(1, 2**16 + 2), st.data())
def test_ids_are_held_to_the_vocabulary_as_by_hand(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, vocabulary_size: int, data: st.DataObject
) -> None:
    info = np.iinfo(dtype)
    ends = [0, 1, vocabulary_size - 1, vocabulary_size, -1, int(info.max), int(info.min)]
    near = st.sampled_from([ending for ending in ends if info.min <= ending <= info.max])
    ids = data.draw(st.lists(near, min_size=4, max_size=9))
    path = tmp_path_factory.mktemp("ids") / "a"
    file = token_file(write_raw(path, ids, dtype), dtype=dtype, format=Format.RAW)
    bad = [at for at, token in enumerate(ids) if not 0 <= token < vocabulary_size]
    out = np.empty((len(ids) - 1, 2), np.int64)
    with TokenData([file], sequence=1, stride=1, vocabulary_size=vocabulary_size) as tokens:
        if not bad:
            tokens.read(np.arange(len(ids) - 1), out)
            return
        place = rf"byte {file.byte_of(bad[0])}: token {bad[0]} is {ids[bad[0]]}, "
        with pytest.raises(UsageError, match=place):
            tokens.read(np.arange(len(ids) - 1), out)


def test_a_disk_that_fails() -> None:
    """The one file of every Linux that fails with a real EIO: nothing is mapped at address 0."""
    with pytest.raises(UsageError, match=r"/proc/self/mem: byte 0: cannot be read .Input/output"):
        read_beginning("/proc/self/mem", 4)


SHRINKING = """\
import faulthandler, os, sys, numpy as np
from torchtally.errors import UsageError
from torchtally.train.data import token_data
from torchtally.train.data.sniff import token_file
faulthandler.enable()
path, how, moment, size = sys.argv[1:]
file = token_file(path, dtype="uint16")
data = token_data.TokenData([file], sequence=4, read=token_data.Read(how))
last, out = np.array([data.windows - 1]), np.empty((1, 5), np.int64)
data.read(last, out)
shrink = lambda: os.truncate(path, int(size))
if moment == "before":
    shrink()
else:
    check, preadv = token_data.check_size, os.preadv
    token_data.check_size = lambda *of: (check(*of), shrink())
    os.preadv = lambda *of: (shrink(), preadv(*of))[1]
try:
    data.read(last, out)
except UsageError as error:
    print(error)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "moment", "size"),
    [("map", "before", 0), ("map", "during", 0), ("copy", "before", 0), ("copy", "during", 4096)],
)
def test_a_file_that_shrinks_before_a_read_or_in_the_middle_of_it(
    how: str, moment: str, size: int, tmp_path: Path
) -> None:
    """An error in words by reads, always. By a map it is too late in the middle of a read:
    SIGBUS, and faulthandler says where.
    """
    path = write_raw(tmp_path / "shard", [1] * 40_001)
    done = subprocess.run(
        [sys.executable, "-c", SHRINKING, path, how, moment, str(size)],
        capture_output=True, text=True, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    )  # fmt: skip
    if (how, moment) == ("map", "during"):
        assert done.returncode == -signal.SIGBUS
        assert "Bus error" in done.stderr
        assert "token_data.py" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert f"shard: byte {size}: truncated here" in done.stdout


def test_a_file_that_is_cut_and_written_again_in_the_middle_of_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    write_raw(path, IDS)
    preadv = os.preadv

    def cut(handle: int, into: list[Any], at: int) -> int:
        os.truncate(path, at + 4)
        read = preadv(handle, into, at)
        write_raw(path, IDS)
        return read

    with opened(path, Read.COPY) as data:
        monkeypatch.setattr(os, "preadv", cut)
        with pytest.raises(
            UsageError, match=r"a: byte 804: the read ended here, though the file is longer now"
        ):
            windows(data, 100)


@pytest.mark.parametrize("read", Read)
def test_a_training_whose_data_shrinks_ends_with_its_log_whole(
    read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read ahead is trained on; then the file and the byte."""
    monkeypatch.setattr(batches, "CHUNK_TOKENS", 1)
    path = write_raw(tmp_path / "shard", IDS)
    data = {"train": [path], "dtype": "uint16", "read": read.value}
    config = language(tmp_path, steps=30, data=data)
    trainer = trainer_of(config)
    step = trainer.step

    def shrinking(batch: TrainBatch) -> StepResult:
        if batch.step == 3:
            os.truncate(path, 10)
        return step(batch)

    monkeypatch.setattr(trainer, "step", shrinking)
    with pytest.raises(UsageError, match="shard: byte 10: truncated here, 5990 bytes short"):
        run(config, trainer)
    steps = [at for at, _ in read_log(tmp_path / "run").series(names.LOSS)]
    assert steps == list(range(1, len(steps) + 1))
    assert 4 <= len(steps) < 30


# What may not be read --------------------------------------------------------------------------

FORBIDDEN = """\
import os, sys, tempfile
from pathlib import Path
from torchtally.errors import UsageError
from torchtally.train.data.files import open_tokens
from torchtally.train.data.prepare import PrepareRequest, prepare

if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)

def attempt(name, call):
    try:
        call()
        print(name, "allowed", sep="|")
    except UsageError as error:
        print(name, error, sep="|")

def read(path):
    open_tokens([str(path)], sequence=4, vocabulary_size=257, seed=0, dtype="uint16").close()

def forbidden(name, what, path):
    attempt("allowed before", lambda: read(path))
    what.chmod(0)
    attempt(name, lambda: read(path))
    what.chmod(0o700)

with tempfile.TemporaryDirectory() as folder:
    here = Path(folder)
    (here / "raw").mkdir()
    shard = here / "raw" / "shard"
    shard.write_bytes(bytes(100))
    forbidden("file", shard, shard)
    forbidden("its folder", here / "raw", shard)
    (here / "texts").mkdir()
    text = here / "texts" / "text"
    text.write_text("one two three\\n" * 50)
    made = here / "made"
    wanted = PrepareRequest((str(here / "texts"),), str(made), is_overwriting=True)
    prepare(wanted)
    def unnamed(path):
        open_tokens([str(path)], sequence=4, vocabulary_size=257, seed=0).close()
    for name, what in (("shard", made / "train-00000.bin"), ("description", made / "tokens.json"),
                       ("folder", made)):
        what.chmod(0)
        attempt(name, lambda: unnamed(made))
        what.chmod(0o700)
    attempt("made again", lambda: unnamed(made))
    for name, what in (("text", text), ("texts", here / "texts"), ("target", made)):
        what.chmod(0)
        attempt(name, lambda: prepare(wanted))
        what.chmod(0o700)
    made.chmod(0o500)
    attempt("read-only target", lambda: prepare(wanted))
    made.chmod(0o700)
    (here / "texts").chmod(0o600)
    attempt("names alone", lambda: prepare(wanted))
    (here / "texts").chmod(0o700)
    attempt("still whole", lambda: unnamed(made))
"""


def test_permission_that_is_taken_away() -> None:
    """In a process that is not root: which file or folder, and why."""
    done = subprocess.run(
        [sys.executable, "-c", FORBIDDEN], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.split("|") for line in done.stdout.splitlines())
    for name in ("allowed before", "made again", "still whole"):
        assert said.pop(name) == "allowed"
    where = {"file": "shard", "its folder": "shard", "shard": "train-00000.bin",
             "description": "tokens.json", "folder": "made", "text": "text", "texts": "texts",
             "target": "made", "read-only target": "made", "names alone": "text"}  # fmt: skip
    assert said.keys() == where.keys()
    for name, path in where.items():
        assert "Permission denied" in said[name], name
        assert path in said[name].partition(": ")[0], name


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    for name, complaint in (
        ("pipe", "not a regular file"),
        ("loop", "Too many levels of symbolic links"),
        ("dangling", "No such file"),
        ("none", "No such file"),
        ("folder", r"a folder without tokens\.json"),
        ("x" * 300, "File name too long"),
        ("a\0b", "null byte"),
    ):
        config = language(tmp_path, data={"train": [str(tmp_path / name)], "dtype": "uint16"})
        with pytest.raises(UsageError, match=complaint):
            trainer_of(config)
    with pytest.raises(UsageError, match="not a regular file"):
        TokenData([TokenFile("/dev/zero", Format.RAW, "uint8", 9)], sequence=1)


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop"])
def test_a_description_that_is_no_file(kind: str, tmp_path: Path) -> None:
    """It is there, so the folder is not one without."""
    place = tmp_path / "tokens.json"
    {"folder": os.mkdir, "pipe": os.mkfifo, "loop": lambda link: os.symlink(link, link)}[kind](
        place
    )
    config = language(tmp_path, data={"train": [str(tmp_path)]})
    with pytest.raises(UsageError, match=r"tokens\.json: (not a regular file|cannot be opened)"):
        trainer_of(config)

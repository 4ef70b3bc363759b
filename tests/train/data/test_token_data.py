"""Several files as windows, the checks before the first step, and files that change under a run."""

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.train.data.files import llm_c, write_raw
from torchtally.errors import UsageError
from torchtally.train.data import check
from torchtally.train.data.check import check_tokens, examine
from torchtally.train.data.sniff import token_file
from torchtally.train.data.token_data import Read, TokenData
from torchtally.train.data.token_file import TokenFile


def raw(path: Path, ids: list[int], dtype: str = "uint16", order: str = "<") -> TokenFile:
    return token_file(write_raw(path, ids, dtype, order), dtype=dtype)


def windows(data: TokenData, numbers: list[int]) -> list[list[int]]:
    out = np.empty((len(numbers), data.width), np.int64)
    data.read(np.array(numbers, np.int64), out)
    return out.tolist()


@pytest.mark.parametrize("read", Read)
def test_windows_tile_each_file_and_never_cross_into_another(tmp_path: Path, read: Read) -> None:
    """Three targets a window. Of 8 tokens: 1-3, 4-6, and the last is left over; of 4: all."""
    files = [raw(tmp_path / "a", list(range(8))), raw(tmp_path / "b", [10, 11, 12, 13], "uint32")]
    with TokenData(files, sequence=3, read=read) as data:
        assert (data.windows, data.tokens) == (3, 12)
        assert windows(data, [2, 0, 1, 0]) == [
            [10, 11, 12, 13], [0, 1, 2, 3], [3, 4, 5, 6], [0, 1, 2, 3]
        ]  # fmt: skip
        for wrong in (-1, 3):
            with pytest.raises(IndexError):
                windows(data, [wrong])
    with TokenData(files, sequence=3, stride=1, read=read) as data:
        assert data.windows == 5 + 1
        assert windows(data, [4, 5]) == [[4, 5, 6, 7], [10, 11, 12, 13]]


@given(
    lengths=st.lists(st.integers(6, 40), min_size=1, max_size=4),
    sequence=st.integers(1, 5),
    stride=st.integers(1, 7),
    read=st.sampled_from(Read),
)
def test_windows_are_slices(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    sequence: int,
    stride: int,
    read: Read,
) -> None:
    folder = tmp_path_factory.mktemp("files")
    rows = [[100 * at + number for number in range(length)] for at, length in enumerate(lengths)]
    files = [raw(folder / str(at), row) for at, row in enumerate(rows)]
    expected = [
        row[at : at + sequence + 1] for row in rows for at in range(0, len(row) - sequence, stride)
    ]
    with TokenData(files, sequence=sequence, stride=stride, read=read) as data:
        assert data.windows == len(expected)
        order = np.random.default_rng(0).permutation(len(expected)).tolist()
        assert windows(data, order) == [expected[number] for number in order]


def test_a_file_without_one_window(tmp_path: Path) -> None:
    files = [raw(tmp_path / "a", [1] * 9), raw(tmp_path / "b", [1] * 4)]
    message = r"b: byte 8: ends after 4 tokens; a sequence of 4 needs 5"
    with pytest.raises(UsageError, match=message):
        TokenData(files, sequence=4)
    with pytest.raises(UsageError, match="No token files"):
        TokenData([], sequence=4)
    with pytest.raises(UsageError, match="both must be 1 or more"):
        TokenData(files, sequence=0)


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    file = raw(tmp_path / "a", [1] * 9)
    before = os.listdir("/proc/self/fd")
    for _ in range(5):
        with TokenData([file], sequence=4) as data:
            windows(data, [0])
    with pytest.raises(UsageError):
        TokenData([file, TokenFile(str(tmp_path / "none"), file.format, "uint16", 9)], sequence=4)
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize("read", Read)
def test_a_file_that_shrinks_between_header_and_opening(tmp_path: Path, read: Read) -> None:
    file = raw(tmp_path / "a", [1] * 90)
    os.truncate(file.path, 100)
    with pytest.raises(UsageError, match=r"a: byte 100: truncated here, 80 bytes short of the 90"):
        TokenData([file], sequence=4, read=read)


SHRINKING = """\
import os, sys, numpy as np
from torchtally.errors import UsageError
from torchtally.train.data.sniff import token_file
from torchtally.train.data.token_data import Read, TokenData
path, how = sys.argv[1:]
file = token_file(path, dtype="uint16")
last = np.array([file.tokens // 4 - 1])
out = np.empty((1, 5), np.int64)
if how == "bare":
    ids = np.memmap(path, np.uint16, mode="r")
    os.truncate(path, 4096)
    ids[-1].tolist()
with TokenData([file], sequence=4, read=Read(how)) as data:
    data.read(last, out)
    os.truncate(path, 4096)
    try:
        data.read(last, out)
    except UsageError as error:
        print(error)
"""


@pytest.mark.thorough
def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    """A bare memory map ends the process; ours says which file, in both ways of reading."""

    def run(how: str) -> "subprocess.CompletedProcess[str]":
        path = write_raw(tmp_path / how, [1] * 40_001)
        no_core = lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # noqa: E731
        return subprocess.run(
            [sys.executable, "-c", SHRINKING, path, how], capture_output=True, text=True,
            timeout=60, preexec_fn=no_core,
        )  # fmt: skip

    assert run("bare").returncode == -signal.SIGBUS
    for read in Read:
        done = run(read.value)
        assert done.returncode == 0, done.stderr
        assert f"{read.value}: byte 4096: truncated here" in done.stdout


def test_a_read_that_fails_names_file_and_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with TokenData([raw(tmp_path / "a", [1] * 90)], sequence=4, read=Read.COPY) as data:
        monkeypatch.setattr(os, "preadv", failing)
        with pytest.raises(UsageError, match=r"a: byte 32: cannot be read .Input/output error"):
            windows(data, [4])


@pytest.mark.thorough
def test_mapped_pages_are_not_memory_of_our_own(tmp_path: Path) -> None:
    """64 MB read by one map: what this process owns does not grow with it."""

    def own_bytes() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("RssAnon:")[2].split()[0]) * 1024

    path = tmp_path / "a"
    np.zeros(32_000_000, np.uint16).tofile(path)
    with TokenData([token_file(str(path), dtype="uint16")], sequence=999) as data:
        out = np.empty((16, 1000), np.int64)
        data.read(np.arange(16), out)
        before = own_bytes()
        for first in range(0, data.windows - 16, 16):
            data.read(np.arange(first, first + 16), out)
        assert own_bytes() - before < 8_000_000


def test_ids_of_the_vocabulary_pass(tmp_path: Path) -> None:
    files = [raw(tmp_path / "a", [0, 9]), raw(tmp_path / "b", [5])]
    assert check_tokens(files, vocabulary_size=10, seed=0) == 3
    facts = examine(files[0])
    assert (facts["least_token"], facts["greatest_token"]) == (0, 9)


def test_a_sample_is_one_percent_and_both_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "LEAST_STRETCHES", 1)
    ids = np.ones(4_000_000, "<u2")
    ids.tofile(tmp_path / "a")
    file = token_file(str(tmp_path / "a"), dtype="uint16")
    assert 0.01 <= check_tokens([file], vocabulary_size=2, seed=0) / 4e6 < 0.015
    assert check_tokens([file], vocabulary_size=2, seed=0, is_whole=True) == 4_000_000
    for place in (0, 3_999_999):
        spoilt = ids.copy()
        spoilt[place] = 2
        spoilt.tofile(tmp_path / "a")
        with pytest.raises(UsageError, match=f"a: byte {2 * place}: token {place} is 2, outside"):
            check_tokens([file], vocabulary_size=2, seed=0)
    spoilt = ids.copy()
    spoilt[123_456] = 7
    spoilt.tofile(tmp_path / "a")
    with pytest.raises(UsageError, match="byte 246912: token 123456 is 7"):
        check_tokens([file], vocabulary_size=2, seed=0, is_whole=True)


def test_a_small_file_is_looked_at_whole(tmp_path: Path) -> None:
    for tokens in (1, 4096, 4097, 64 * 4096):
        file = raw(tmp_path / "a", [1] * tokens)
        assert check_tokens([file], vocabulary_size=2, seed=0) == tokens


def test_every_shard_is_looked_at(tmp_path: Path) -> None:
    files = [raw(tmp_path / str(at), [1] * 50) for at in range(20)]
    raw(tmp_path / "13", [1] * 49 + [99])
    with pytest.raises(UsageError, match=r"13: byte 98: token 49 is 99"):
        check_tokens(files, vocabulary_size=50, seed=0)


def test_what_is_probably_wrong(tmp_path: Path) -> None:
    """The other byte order, the other width, or another vocabulary."""
    text = [500, 1200, 700, 3, 999, 40_000]
    cases = (
        (raw(tmp_path / "a", text, order=">"), "looks big-endian"),
        (token_file(write_raw(tmp_path / "b", text), dtype="uint32"), "use --dtype uint16"),
        (token_file(write_raw(tmp_path / "c", [70_000] * 9, "uint32"), dtype="uint16"),
         "Use the vocabulary size"),
        (raw(tmp_path / "d", [1, 2, 50_000]), "Use the vocabulary size"),
    )  # fmt: skip
    for file, remedy in cases:
        with pytest.raises(UsageError, match=remedy):
            check_tokens([file], vocabulary_size=40_001 if remedy[:4] != "Use " else 4000, seed=0)
    wide = token_file(write_raw(tmp_path / "e", [60_000] * 9, "uint32"), dtype="uint16")
    with pytest.raises(UsageError, match="token 0 is 60000"):
        check_tokens([wide], vocabulary_size=50_257, seed=0)
    with pytest.raises(UsageError, match="token 1 is -1"):
        check_tokens([raw(tmp_path / "g", [1, -1], "int32")], vocabulary_size=9, seed=0)


def test_wide_ids_read_as_narrow_ones(tmp_path: Path) -> None:
    """Every half is an id of GPT-2's vocabulary: only the pattern shows it. Constants show none."""
    ids = np.random.default_rng(0).integers(0, 50_257, 10_001).astype("<u4")
    ids.tofile(tmp_path / "a")
    file = token_file(str(tmp_path / "a"), dtype="uint16")
    with pytest.raises(UsageError, match=r"every second id is at most 0: .* --dtype uint32"):
        check_tokens([file], vocabulary_size=50_257, seed=0)
    wide = token_file(str(tmp_path / "a"), dtype="uint32")
    assert check_tokens([wide], vocabulary_size=50_257, seed=0) > 0
    assert check_tokens([raw(tmp_path / "b", [0] * 500)], vocabulary_size=9, seed=0) == 500
    assert check_tokens([raw(tmp_path / "c", [7, 0] * 9)], vocabulary_size=9, seed=0) == 18


def test_an_llm_c_file_is_read_behind_its_header(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(llm_c([3, 4, 5, 6]))
    with TokenData([token_file(str(tmp_path / "a.bin"))], sequence=2, stride=1) as data:
        assert windows(data, [0, 1]) == [[3, 4, 5], [4, 5, 6]]

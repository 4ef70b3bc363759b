"""Every format, from bytes written by hand to the ids that are read."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.train.data.files import LETTERS, index, llm_c, npy, packed, write_megatron, write_raw
from torchtally.errors import UsageError
from torchtally.train.data.sniff import token_file
from torchtally.train.data.token_data import Read, TokenData
from torchtally.train.data.token_file import Format, OpenFile, TokenFile, map_tokens

IDS = [1, 2, 300, 50256, 0, 7, 65535]


def ids_of(file: TokenFile) -> list[int]:
    """By the map, and by reads of one window: the same."""
    with OpenFile(file.path) as opened:
        ids: list[int] = map_tokens(file, opened).tolist()
    for read in Read:
        out = np.empty((1, file.tokens), np.int64)
        with TokenData([file], sequence=file.tokens - 1, read=read) as data:
            data.read(np.array([0]), out)
        assert out[0].tolist() == ids
    return ids


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


@pytest.mark.parametrize("dtype", LETTERS)
def test_raw(tmp_path: Path, dtype: str) -> None:
    """nanoGPT's files, and OLMo's .npy without a header: little-endian ids and nothing else."""
    ids = [1, 2, 100, 0, 127]
    for name in ("train.bin", "part-0.npy"):
        file = token_file(write_raw(tmp_path / name, ids, dtype), dtype=dtype)
        assert (file.format, file.dtype, file.tokens, file.offset_bytes) == ("raw", dtype, 5, 0)
        assert file.documents is None
        assert ids_of(file) == ids


def test_the_largest_ids_stay_what_they_are(tmp_path: Path) -> None:
    """uint16 and uint32 beyond the signed half are not negative."""
    assert ids_of(token_file(write_raw(tmp_path / "a", IDS), dtype="uint16")) == IDS
    wide = [2**31, 2**32 - 1, 5]
    assert ids_of(token_file(write_raw(tmp_path / "b", wide, "uint32"), dtype="uint32")) == wide


def test_a_name_may_tell_the_dtype(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "train_uint32.bin", IDS, "uint32")
    assert ids_of(token_file(path)) == IDS
    path = write_raw(tmp_path / "Books.INT64.npy", IDS, "int64")
    assert ids_of(token_file(path)) == IDS


def test_without_a_dtype_nothing_is_assumed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"train\.bin: byte 0: no header .* --dtype"):
        token_file(write_raw(tmp_path / "train.bin", IDS))
    with pytest.raises(UsageError, match="not_uint160"):
        token_file(write_raw(tmp_path / "not_uint160.bin", IDS))
    with pytest.raises(UsageError, match="unknown dtype of token ids 'float32'"):
        token_file(write_raw(tmp_path / "a", IDS), dtype="float32")


def test_a_pickle_beside_the_file_stays_closed(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.mkdir, (str(tmp_path / "exploded"),))

    (tmp_path / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": Bomb()}))
    assert token_file(write_raw(tmp_path / "train.bin", IDS), dtype="uint16").tokens == len(IDS)
    assert not (tmp_path / "exploded").exists()


def test_llm_c(tmp_path: Path) -> None:
    file = token_file(write(tmp_path / "a.bin", llm_c(IDS)))
    assert (file.format, file.dtype, file.tokens, file.offset_bytes) == ("llm.c", "uint16", 7, 1024)
    assert ids_of(file) == IDS
    wide = [128000, 1, 2**20]
    content = llm_c(wide, magic=20240801, version=7, dtype="uint32")
    file = token_file(write(tmp_path / "b.bin", content))
    assert (file.dtype, ids_of(file)) == ("uint32", wide)


@pytest.mark.parametrize(
    ("descr", "dtype"),
    [("<u2", "uint16"), ("<u4", "uint32"), ("<i4", "int32"), ("<i8", "int64"), ("<u8", "uint64"),
     ("<i2", "int16"), ("|u1", "uint8"), ("|i1", "int8")],
)  # fmt: skip
@pytest.mark.parametrize("version", [1, 2, 3])
def test_npy(tmp_path: Path, descr: str, dtype: str, version: int) -> None:
    ids = [5, 0, 127, 9]
    path = write(tmp_path / "a.npy", npy(ids, descr, dtype, version))
    file = token_file(path)
    assert (file.format, file.dtype, file.tokens) == ("npy", dtype, 4)
    assert file.offset_bytes % 64 == 0
    assert ids_of(file) == ids == np.load(path).tolist()


def test_npy_as_numpy_writes_it(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.int32).reshape(3, 4)
    np.save(tmp_path / "rows.npy", rows)
    assert ids_of(token_file(str(tmp_path / "rows.npy"))) == list(range(12))
    np.save(tmp_path / "columns.npy", np.asfortranarray(rows))
    with pytest.raises(UsageError, match="ascontiguousarray"):
        token_file(str(tmp_path / "columns.npy"))
    np.save(tmp_path / "big.npy", rows.astype(">i4"))
    with pytest.raises(UsageError, match="big-endian"):
        token_file(str(tmp_path / "big.npy"))
    np.save(tmp_path / "objects.npy", np.array([{}], object))
    with pytest.raises(UsageError, match="byte 10: dtype"):
        token_file(str(tmp_path / "objects.npy"))
    np.save(tmp_path / "floats.npy", np.ones(3))
    with pytest.raises(UsageError, match="'<f8'"):
        token_file(str(tmp_path / "floats.npy"))


@pytest.mark.parametrize("modes", [False, True])
def test_megatron(tmp_path: Path, modes: bool) -> None:
    """Three sequences, two documents: the first has two of them."""
    path = write_megatron(tmp_path, IDS, index([3, 0, 4], [0, 2, 3], modes=modes))
    for name in (path, str(tmp_path / "corpus.idx")):
        file = token_file(name)
        assert (file.path, file.format, file.dtype) == (path, Format.MEGATRON, "uint16")
        assert (file.tokens, file.documents, file.offset_bytes) == (7, 2, 0)
        assert ids_of(file) == IDS


@pytest.mark.parametrize(
    ("code", "dtype", "item_bytes"),
    [(1, "uint8", 1), (2, "int8", 1), (3, "int16", 2), (4, "int32", 4), (5, "int64", 8)],
)
def test_megatron_dtypes(tmp_path: Path, code: int, dtype: str, item_bytes: int) -> None:
    table = index([2, 1], [0, 2], code=code, item_bytes=item_bytes)
    assert ids_of(token_file(write_megatron(tmp_path, [9, 8, 7], table, dtype))) == [9, 8, 7]


BAD_INDEXES = {
    "byte 0: not a Megatron index": index([7], [0, 1], version=2),
    "code 7 .floating": index([7], [0, 1], code=7),
    "code 99 .unknown": index([7], [0, 1], code=99),
    "byte 34: sequence 0 has -1": index([-1, 8], [0, 2]),
    r"byte 50: sequence 1 begins at byte 8 .* instead of 6": index([3, 4], [0, 2], pointers=[0, 8]),
    "byte 42: sequence 0 begins at byte 2": index([3, 4], [0, 2], pointers=[2, 8]),
    "byte 58: document 0 begins with sequence 3 of 2": index([3, 4], [3, 2]),
    "byte 66: document 1 .* out of order": index([3, 4], [1, 0]),
    "ends at byte 14. 2 bytes are missing": index([8], [0, 1]),
    "ends at byte 14. 2 bytes follow": index([6], [0, 1]),
    "take 54 bytes; the file has 50": index([7], [0])[:-4] + b"",
    "ends inside its header": index([7], [0, 1])[:20],
}


@pytest.mark.parametrize("complaint", BAD_INDEXES)
def test_damaged_indexes(tmp_path: Path, complaint: str) -> None:
    write_megatron(tmp_path, IDS, BAD_INDEXES[complaint])
    expected = complaint if "54" not in complaint else "take 54 bytes; the file has 50"
    with pytest.raises(UsageError, match=expected) as raised:
        token_file(str(tmp_path / "corpus.idx"))
    assert str(tmp_path / "corpus") in str(raised.value)


REFUSED = {
    "byte 0: the file is empty": b"",
    "byte 0: 20240522 marks multiple-choice": llm_c([1], magic=20240522),
    "byte 0: 20240326 marks a model's weights": llm_c([1], magic=20240326),
    "byte 500: the file ends inside its header of 1024": llm_c(IDS)[:500],
    "byte 4: version 3": llm_c(IDS, version=3),
    "byte 8: -5 tokens": llm_c(IDS, count=-5),
    r"byte 8: .* 8 tokens .* 1040, but ends at byte 1038. 2 bytes are missing": llm_c(IDS, count=8),
    "12 bytes follow": llm_c(IDS, count=1),
    "byte 1024: no tokens": llm_c([]),
    "byte 0: an llm.c header in big-endian order": bytes(
        reversed(packed([20240520], "int32"))
    ).ljust(2000, b"\0"),
    "byte 0: a Parquet file": b"PAR1" + bytes(100),
    "byte 0: an Arrow stream": b"\xff\xff\xff\xff" + bytes(100),
    "byte 0: a zip file": b"PK\x03\x04" + bytes(100),
    r"not the header of an array of numbers \(version 9": b"\x93NUMPY\x09\0" + bytes(100),
    r"byte 8: not the header .* \(EOF: reading array header length": b"\x93NUMPY\x01\0",
    r"byte 64: not the header .* expected 118 bytes got 54": npy(IDS)[:64],
    "not the header .* does not contain the correct keys": npy(IDS).replace(b"'shape'", b"'shbpe'"),
    "byte 10: the header declares 9 tokens": npy(IDS, shape="(9,)"),
    r"not the header of": npy(IDS, shape="(2**70,)"),
    "are left over after 7 ids": packed(IDS, "uint16") + b"x",
}


@pytest.mark.parametrize("complaint", REFUSED)
def test_refused_with_file_and_byte(tmp_path: Path, complaint: str) -> None:
    path = write(tmp_path / "data_uint16.bin", REFUSED[complaint])
    with pytest.raises(UsageError, match=complaint) as raised:
        token_file(path)
    assert path in str(raised.value)


def test_a_said_dtype_must_agree_with_the_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.bin", llm_c(IDS))
    assert token_file(path, dtype="uint16").offset_bytes == 1024
    with pytest.raises(UsageError, match="header says uint16, not uint32"):
        token_file(path, dtype="uint32")
    assert token_file(path, dtype="uint16", format=Format.RAW).tokens == 512 + len(IDS)


def test_what_is_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in (tmp_path, tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(UsageError, match="not a regular file"):
            token_file(str(name))
    for name in (str(tmp_path / "none"), "a\0b"):
        with pytest.raises(UsageError, match="cannot be opened"):
            token_file(name)


def test_megatron_without_its_index(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no Megatron index .* beside it"):
        token_file(write_raw(tmp_path / "a.bin", IDS), format=Format.MEGATRON)

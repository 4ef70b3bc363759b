"""Whatever is in a file: what is found in it is a TokenFile that is true, or a UsageError."""

import json
import struct
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.train.data.files import index, llm_c, npy
from torchtally.errors import UsageError
from torchtally.train.data.description import read_description
from torchtally.train.data.sniff import token_file
from torchtally.train.data.token_file import LITTLE_ENDIAN, Format

IDS = [1, 2, 3, 4, 5]
WORDS = st.sampled_from([0, 1, 2, 5, 7, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1])


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file with some bytes changed, numbers put over it, cut short or made longer."""
    content = bytearray(whole)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(content) - 1))
        if draw(st.booleans()):
            content[at] = draw(st.integers(0, 255))
        else:
            word = struct.pack("<Q", draw(WORDS))[: draw(st.sampled_from([1, 2, 4, 8]))]
            content[at : at + len(word)] = word
    end = draw(st.integers(0, len(content)) | st.just(len(content)))
    return bytes(content[:end]) + draw(st.binary(max_size=8))


def check_read(name: str, files: dict[str, bytes], **said: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for other, content in files.items():
            Path(folder, other).write_bytes(content)
        try:
            file = token_file(str(Path(folder, name)), **said)  # type: ignore[arg-type]
        except UsageError:
            return
        assert file.tokens > 0
        assert Path(file.path).stat().st_size == file.end_bytes


@given(damaged(llm_c(IDS)))
def test_llm_c(content: bytes) -> None:
    check_read("a.bin", {"a.bin": content})


NPY_TEXTS = st.sampled_from(
    ["(" * 900, "(1," * 400, "{}", "[]" * 9, "-" * 3000, "{[]: 1}", "'\\x'", "1e999", "\0", "é" * 9,
     "{'descr': '<u2', 'fortran_order': False, 'shape': (-1,)}", "9" * 5000, "[" * 60000,
     "{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (1,)}",
     "{'descr': '<u2', 'fortran_order': 0, 'shape': (True,)}", "{**{}}", "f''", "...",
     "{'descr': '<u2', 'fortran_order': False, 'shape': 5}"]
) | st.text(max_size=100)  # fmt: skip


@given(damaged(npy(IDS)))
def test_npy(content: bytes) -> None:
    check_read("a.npy", {"a.npy": content})


@given(NPY_TEXTS)
def test_npy_header_texts(text: str) -> None:
    header = text.encode()[:65535]
    check_read("a.npy", {"a.npy": b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header})


@given(damaged(index([2, 0, 3], [0, 1, 3])), st.sampled_from([bytes(10), bytes(9), b""]))
@example(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 2**64 - 1, 2**64 - 1), b"")
def test_megatron(content: bytes, tokens: bytes) -> None:
    check_read("a.bin", {"a.idx": content, "a.bin": tokens}, format=Format.MEGATRON)
    check_read("a.idx", {"a.idx": content})


@given(st.binary(max_size=200), st.none() | st.sampled_from(sorted(LITTLE_ENDIAN)))
def test_any_bytes(content: bytes, dtype: str | None) -> None:
    check_read("a.bin", {"a.bin": content}, dtype=dtype)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)
KEYS = ("tokenizer", "vocabulary_size", "end_of_document", "dtype", "splits")


@given(st.dictionaries(st.sampled_from(KEYS), JSON), st.sampled_from([1, 2, None]))
@example({"tokenizer": "../a", "vocabulary_size": 1, "end_of_document": None, "dtype": "uint16",
          "splits": {}}, 1)  # fmt: skip
@example({"tokenizer": "byte", "vocabulary_size": 1, "end_of_document": None, "dtype": [],
          "splits": {"a": 1}}, 1)  # fmt: skip
def test_descriptions(fields: dict[str, object], version: int | None) -> None:
    document = {"format": "torchtally tokens", "format_version": version, **fields}
    with tempfile.NamedTemporaryFile() as file:
        file.write(json.dumps(document).encode())
        file.flush()
        try:
            description = read_description(file.name)
        except UsageError:
            return
    assert description.dtype in LITTLE_ENDIAN
    assert "/" not in description.tokenizer


def test_json_that_nests_too_deep() -> None:
    with tempfile.NamedTemporaryFile() as file:
        for content in (b"[" * 100_000, b"\xff\xfe", b"NaN", b'{"format": 3}'):
            Path(file.name).write_bytes(content)
            with pytest.raises(UsageError):
                read_description(file.name)

"""Text into token files: what is in them, what is not lost, what a failure leaves behind."""

import errno
import hashlib
import io
import json
import os
import resource
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtally.errors import UsageError
from torchtally.train.data import texts, tokenizer, writer
from torchtally.train.data.description import NAME, read_description
from torchtally.train.data.files import token_files
from torchtally.train.data.prepare import PrepareRequest, prepare
from torchtally.train.data.texts import TextSpan, divide
from torchtally.train.data.token_data import Read, TokenData
from torchtally.train.data.tokenizer import BytePairTokenizer, ByteTokenizer, train_byte_pairs

TEXT = b"one two three\nfour five six\nseven eight nine\nten eleven twelve\n" * 40


def ids_in(folder: Path, split: str | None = None) -> list[int]:
    """All ids of a split, file after file, by NumPy alone."""
    files = token_files([str(folder)], split=split)
    return [
        number
        for file in files
        for number in np.fromfile(file.path, file.numpy_dtype, offset=file.offset_bytes).tolist()
    ]


def wanted(folder: Path, *inputs: str, **fields: object) -> PrepareRequest:
    return PrepareRequest(inputs, str(folder / "out"), **fields)  # type: ignore[arg-type]


def test_bytes_to_the_byte(tmp_path: Path) -> None:
    """The header by struct, the ids by hand: h, i, and the end of the document."""
    (tmp_path / "a.txt").write_bytes(b"hi")
    prepare(wanted(tmp_path, str(tmp_path / "a.txt"), validation=0.0))
    content = (tmp_path / "out" / "train-00000.bin").read_bytes()
    assert struct.unpack("<3i", content[:12]) == (20240520, 1, 3)
    assert content[12:1024] == bytes(1012)
    assert struct.unpack("<3H", content[1024:]) == (104, 105, 256)
    description = json.loads((tmp_path / "out" / NAME).read_text())
    assert description["format_version"] == 1
    assert description["tokenizer"] == "byte"
    assert (description["vocabulary_size"], description["end_of_document"]) == (257, 256)
    split = description["splits"]["train"]
    assert (split["tokens"], split["documents"]) == (3, 1)
    assert split["shards"] == [
        {"name": "train-00000.bin", "tokens": 3, "bytes": 1030,
         "sha256": hashlib.sha256(content).hexdigest()}
    ]  # fmt: skip
    assert sorted(os.listdir(tmp_path / "out")) == [NAME, "train-00000.bin"]


@given(st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=5),
       st.integers(1, 200), st.integers(1, 64))  # fmt: skip
def test_any_bytes_come_back(
    tmp_path_factory: pytest.TempPathFactory, documents: list[bytes], shard: int, chunk: int
) -> None:
    """Whatever they are, through chunks and shards of any size."""
    folder = tmp_path_factory.mktemp("text")
    paths = [folder / str(at) for at in range(len(documents))]
    for path, document in zip(paths, documents, strict=True):
        path.write_bytes(document)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "TEXT_CHUNK_BYTES", chunk)
        description = prepare(
            wanted(folder, *map(str, paths), validation=0.0, shard_tokens=shard)
        ).description
    ids = ids_in(folder / "out")
    assert ids == [value for document in documents for value in [*document, 256]]
    assert [shard.tokens for shard in description.splits["train"].shards][:-1] == [shard] * (
        -(-len(ids) // shard) - 1
    )


def test_inputs_are_files_folders_and_globs_each_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "deep/c.md", ".hidden", ".git/x", "out/old.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name[-5])
    (tmp_path / "binary").write_bytes(b"\0\1")
    (tmp_path / "empty").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    pattern = str(tmp_path / "**" / "*.md")
    prepared = prepare(
        wanted(tmp_path, str(tmp_path / "b.txt"), str(tmp_path), pattern, validation=0.0)
    )
    assert prepared.skipped == 2
    assert prepared.description.splits["train"].documents == 3
    ends = [98, 256, 97, 256, ord("/"), 256]
    assert [token for token in ids_in(tmp_path / "out") if token in ends] == ends
    for wrong in ("none.txt", str(tmp_path / "*.c")):
        with pytest.raises(UsageError, match="no such file or folder"):
            prepare(wanted(tmp_path, wrong, is_overwriting=True))
    with pytest.raises(UsageError, match=r"found no text .2 files are not text"):
        prepare(PrepareRequest((str(tmp_path / "[be]*y"),), str(tmp_path / "new")))


def test_a_named_file_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\0\xff")
    prepare(wanted(tmp_path, str(tmp_path / "binary"), validation=0.0))
    assert ids_in(tmp_path / "out") == [0, 255, 256]


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(TEXT))))
    prepared = prepare(wanted(tmp_path, "-"))
    ids = ids_in(tmp_path / "out", "train"), ids_in(tmp_path / "out", "validation")
    assert bytes(ids[0][:-1] + ids[1][:-1]) == TEXT
    assert prepared.text_bytes == len(TEXT)
    assert not [name for name in os.listdir(tmp_path / "out") if name.startswith(".")]


def test_of_one_document_its_last_lines_validate(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    prepare(wanted(tmp_path, str(tmp_path / "a"), validation=0.25))
    train = bytes(ids_in(tmp_path / "out", "train")[:-1])
    rest = bytes(ids_in(tmp_path / "out", "validation")[:-1])
    assert train + rest == TEXT
    assert train.endswith(b"\n")
    assert abs(len(rest) / len(TEXT) - 0.25) < 0.01


def test_a_cut_is_between_characters(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("\u20ac" * 100)
    prepare(wanted(tmp_path, str(tmp_path / "a"), validation=0.333))
    for split in ("train", "validation"):
        assert set(bytes(ids_in(tmp_path / "out", split)[:-1]).decode()) == {"\u20ac"}


@given(st.lists(st.integers(1, 1000), min_size=40, max_size=80), st.integers(0, 99))
def test_of_many_documents_whole_ones_validate(sizes: list[int], seed: int) -> None:
    documents = [TextSpan(f"/none/{at}", 0, size) for at, size in enumerate(sizes)]
    splits = divide(documents, validation=0.2, seed=seed)
    spans = [*splits["train"], *splits["validation"]]
    assert sorted(spans, key=lambda span: span.path) == sorted(
        documents, key=lambda span: span.path
    )
    kept = sum(span.end for span in splits["validation"])
    assert 0.2 * sum(sizes) - 1000 <= kept <= 0.2 * sum(sizes)
    assert splits == divide(documents, validation=0.2, seed=seed)


def test_a_fraction(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    for wrong in (1.0, -0.1, float("nan")):
        with pytest.raises(UsageError, match="expected a fraction"):
            prepare(wanted(tmp_path, str(tmp_path / "a"), validation=wrong))


def test_a_folder_is_replaced_only_when_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    prepare(wanted(tmp_path, str(tmp_path / "a"), shard_tokens=500))
    before = ids_in(tmp_path / "out")
    with pytest.raises(UsageError, match="--overwrite"):
        prepare(wanted(tmp_path, str(tmp_path / "a")))
    assert ids_in(tmp_path / "out") == before
    prepare(wanted(tmp_path, str(tmp_path / "a"), validation=0.0, is_overwriting=True))
    assert sorted(os.listdir(tmp_path / "out")) == [NAME, "train-b-00000.bin"]
    prepare(wanted(tmp_path, str(tmp_path / "a"), validation=0.0, is_overwriting=True))
    assert sorted(os.listdir(tmp_path / "out")) == [NAME, "train-00000.bin"]


def test_a_mixed_folder_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    prepare(wanted(tmp_path, str(tmp_path / "a")))
    (tmp_path / "b").write_bytes(TEXT[:100])
    prepare(PrepareRequest((str(tmp_path / "b"),), str(tmp_path / "other")))
    os.replace(tmp_path / "other" / "train-00000.bin", tmp_path / "out" / "train-00000.bin")
    with pytest.raises(UsageError, match="The folder mixes two"):
        token_files([str(tmp_path / "out")])
    with pytest.raises(UsageError, match="no split 'test'; it has train, validation"):
        token_files([str(tmp_path / "out")], split="test")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_folder_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    (tmp_path / "out").mkdir()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "train-00000.bin")

    monkeypatch.setattr(writer.os, call, full)
    with pytest.raises(UsageError, match=r"cannot be written .No space left"):
        prepare(wanted(tmp_path, str(tmp_path / "a")))
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.thorough
def test_a_limit_of_file_size_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(TEXT * 100)
    program = (
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from torchtally.cli.data import NAME\n"
        "from torchtally.train.data.prepare import PrepareRequest, prepare\n"
        f"prepare(PrepareRequest(({str(tmp_path / 'a')!r},), {str(tmp_path / 'out')!r}))"
    )
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))  # noqa: E731
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        preexec_fn=limit,
        timeout=60,
    )
    assert "UsageError" in done.stderr
    assert "cannot be written (File too large)" in done.stderr
    assert os.listdir(tmp_path / "out") == []


def test_one_process_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    with (
        writer.folder_to_write(str(tmp_path / "out")),
        pytest.raises(UsageError, match="another `tally data prepare` is writing there"),
    ):
        prepare(wanted(tmp_path, str(tmp_path / "a")))


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """60 MB of text in one line through a few MiB: what Python has at its peak."""
    import tracemalloc

    path = tmp_path / "a"
    path.write_bytes(b"x" * 60_000_000)
    tracemalloc.start()
    prepare(wanted(tmp_path, str(path)))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 12_000_000


def test_what_was_prepared_trains(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    prepare(wanted(tmp_path, str(tmp_path / "a"), shard_tokens=700))
    files = token_files([str(tmp_path / "out")], split="train")
    assert len(files) > 2
    with TokenData(files, sequence=64, read=Read.MAP) as data:
        out = np.empty((1, 65), np.int64)
        data.read(np.array([0]), out)
    assert bytes(out[0].tolist()) == TEXT[:65]


def test_byte_pairs_of_our_own(tmp_path: Path) -> None:
    """Any text comes back, and common words take fewer ids than bytes."""
    (tmp_path / "a").write_bytes(TEXT + "caf\u00e9 \u65e5\u672c\n".encode())
    prepared = prepare(wanted(tmp_path, str(tmp_path / "a"), vocabulary_size=300, validation=0.0))
    description = prepared.description
    assert (description.vocabulary_size, description.dtype) == (300, "uint16")
    assert read_description(str(tmp_path / "out" / NAME)) == description
    content = (tmp_path / "out" / "tokenizer.json").read_text()
    again = BytePairTokenizer(content, place="tokenizer.json")
    ids = ids_in(tmp_path / "out")
    assert ids[-1] == description.end_of_document == again.end_of_document
    assert again.decode(ids).encode() == (tmp_path / "a").read_bytes()
    assert len(ids) < 0.6 * len(TEXT)
    other = prepare(PrepareRequest((str(tmp_path / "a"),), str(tmp_path / "two"), validation=0.0,
                           tokenizer=str(tmp_path / "out" / "tokenizer.json")))  # fmt: skip
    assert ids_in(tmp_path / "two") == ids
    assert other.description == description


def test_pieces_end_with_lines_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = BytePairTokenizer(train_byte_pairs([[TEXT]], 290), place="")
    whole = np.concatenate(list(tokens.encode([TEXT]))).tolist()
    monkeypatch.setattr(tokenizer, "PIECE_CHARS", 100)
    chunks = [TEXT[at : at + 77] for at in range(0, len(TEXT), 77)]
    assert np.concatenate(list(tokens.encode(chunks))).tolist() == whole


def test_bytes_that_are_no_utf_8(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"good \xff\xfe bad \xe2\x82")
    prepared = prepare(wanted(tmp_path, str(tmp_path / "a"), vocabulary_size=260, validation=0.0))
    assert prepared.replaced == 3
    tokens = ByteTokenizer()
    assert tokens.decode([104, 105, 256, 0xFF]) == "hi\ufffd"


def test_wide_vocabularies_take_uint32() -> None:
    assert [writer.dtype_for(vocabulary_size) for vocabulary_size in (257, 65_536, 65_537)] == [
        "uint16",
        "uint16",
        "uint32",
    ]


def test_tokenizers_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(TEXT)
    (tmp_path / "bad.json").write_text("{}")
    for tokens, complaint in (
        (str(tmp_path / "bad.json"), "not a tokenizer.json"),
        (str(tmp_path / "none.json"), "cannot be read as a tokenizer.json"),
    ):
        with pytest.raises(UsageError, match=complaint):
            prepare(wanted(tmp_path, str(tmp_path / "a"), tokenizer=tokens))
    with pytest.raises(UsageError, match="take 257"):
        prepare(wanted(tmp_path, str(tmp_path / "a"), vocabulary_size=256))
    with pytest.raises(UsageError, match="Give one of the two"):
        prepare(wanted(tmp_path, str(tmp_path / "a"), vocabulary_size=300, tokenizer="x.json"))


def test_the_end_of_a_document() -> None:
    content = train_byte_pairs([[TEXT]], 260)
    end = json.loads(content)["added_tokens"][0]["id"]
    assert BytePairTokenizer(content, place="").end_of_document == end
    assert BytePairTokenizer(content, place="", end_of_document="none").end_of_document is None
    with pytest.raises(UsageError, match="has no token '<stop>'"):
        BytePairTokenizer(content, place="a", end_of_document="<stop>")
    unnamed = content.replace("<|endoftext|>", "<|over|>")
    with pytest.raises(UsageError, match="--end-of-document TOKEN"):
        BytePairTokenizer(unnamed, place="a")
    named = BytePairTokenizer(unnamed, place="a", end_of_document="<|over|>")
    assert named.end_of_document == end


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (tmp_path / "a").write_bytes(TEXT)
    with pytest.raises(UsageError, match=r"torchtally\[bpe\]"):
        prepare(wanted(tmp_path, str(tmp_path / "a"), vocabulary_size=300))

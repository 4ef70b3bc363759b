"""`tally data`: text into token files, and what a file holds, at the command line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.data.files import index, llm_c, write_megatron, write_raw
from torchtally import progress
from torchtally.cli import data
from torchtally.cli.arguments import Parser
from torchtally.errors import UsageError

TEXT = "to be or not to be\n" * 500


def tally_data(*arguments: str) -> int:
    """As `tally data ...` would, in this process."""
    top = Parser(prog="tally")
    data.add_parser(top.add_subparsers(required=True))
    args = top.parse_args(["data", *arguments])
    status: int = args.command(args)
    return status


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "hamlet.txt").write_text(TEXT)
    return str(tmp_path / "hamlet.txt")


def test_prepare_says_what_it_made(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """9500 bytes, of which the last 50 lines validate, each part with one end of the document."""
    out = str(tmp_path / "out")
    assert tally_data("prepare", text, "--out", out) == 0
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        f"{out}: tokens by byte, vocabulary 257, uint16",
        "  train           8.57 K tokens in 1 file, of 1 document",
        "  validation         932 tokens in 1 file, of 1 document",
    ]
    assert said.err == ""


def test_show_a_folder(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    tally_data("prepare", text, "--out", out, "--shard-tokens", "5K", "--validation", "0")
    capsys.readouterr()
    assert tally_data("show", out, "--json") == 0
    first, second = json.loads(capsys.readouterr().out)["files"]
    assert first == {
        "file": f"{out}/train-00000.bin", "format": "llm.c", "dtype": "uint16", "tokens": 5000,
        "token_bytes": 10000, "offset_bytes": 1024, "documents": None, "tokens_looked_at": 5000,
        "least_token": 10, "greatest_token": 116,
    }  # fmt: skip
    assert (second["tokens"], second["greatest_token"]) == (len(TEXT) + 1 - 5000, 256)


def test_show_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_megatron(tmp_path, list(range(7)), index([3, 4], [0, 1, 2]))
    assert tally_data("show", path) == 0
    assert capsys.readouterr().out == (
        f"{path}\n"
        "  format     megatron, uint16, from byte 0\n"
        "  tokens     7 (7), 14 B\n"
        "  ids        0 to 6, of all of them\n"
        "  documents  2\n"
    )


def test_show_needs_a_dtype_where_nothing_tells_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_raw(tmp_path / "train.bin", [1, 2, 60_000])
    with pytest.raises(UsageError, match="--dtype"):
        tally_data("show", path)
    assert tally_data("show", path, "--dtype", "uint16") == 0
    assert "1 to 60000, of all of them" in capsys.readouterr().out
    with pytest.raises(UsageError, match="byte 4: token 2 is 60000"):
        tally_data("show", path, "--dtype", "uint16", "--vocabulary-size", "50257")


def test_show_as_another_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(llm_c([1, 2]))
    assert tally_data("show", str(path), "--layout", "raw", "--dtype", "uint16") == 0
    assert "514 (514)" in capsys.readouterr().out


def test_skipped_and_replaced_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a").write_bytes(b"caf\xe9 " + TEXT.encode())
    (folder / "b").write_bytes(b"\0")
    tally_data("prepare", str(folder), "--out", str(tmp_path / "out"), "--vocabulary-size", "260")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(": tokens by tokenizer.json, vocabulary 260, uint16")
    assert lines[-2] == "  1 empty files or files that are not text left out"
    assert lines[-1] == "  1 characters are U+FFFD: bytes that are not UTF-8"


def test_progress_on_a_long_input(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SPARSE_S", 0.0)
    tally_data("prepare", text, "--out", str(tmp_path / "out"))
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(" of ")[0] for line in lines] == [
        "tally: train: 8.37 KiB",
        "tally: validation: 931 B",
    ]
    assert all(line.endswith(", 0 s left") for line in lines)
    tally_data("prepare", text, "--out", str(tmp_path / "out"), "--overwrite", "--quiet")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("page", [(), ("prepare",), ("show",)])
def test_help(page: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        tally_data(*page, "--help")
    assert raised.value.code == 0
    said = capsys.readouterr().out
    assert all(len(line) <= 100 for line in said.splitlines())
    if not page:
        assert "examples:" in said


def test_wrong_arguments(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["prepare", text], ["show"], ["prepare", text, "--out", "x", "--seed", "y"]):
        with pytest.raises(SystemExit) as raised:
            tally_data(*wrong)
        assert raised.value.code == 2
    with pytest.raises(SystemExit):
        tally_data("prepare", text, "--out", "x", "--vocabulary-size", "many")
    assert "70B, 15T" in capsys.readouterr().err
    with pytest.raises(UsageError, match="a seed is 0 or more"):
        tally_data("prepare", text, "--out", str(tmp_path / "x"), "--seed", "-1")


def test_the_command_itself_imports_nothing_slow() -> None:
    program = (
        "import sys, torchtally.cli.data; print('numpy' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"], done.stderr

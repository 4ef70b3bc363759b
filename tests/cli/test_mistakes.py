"""One exit code for one mistake, whichever command it is made in."""

import shutil
from pathlib import Path

import pytest

from tests.cli.test_destination import parsers
from tests.report.test_text import realistic
from torchtally.cli import main

pytestmark = pytest.mark.one_case_in(4)

INPUTS = {
    "run": ["run FILE", "run SCRIPT --budget FILE"],
    "show": ["show FILE"],
    "view": ["view FILE --browser"],
    "report": ["report FILE"],
    "diff": ["diff FILE TRACE", "diff TRACE FILE"],
    "summary": ["summary FILE", "summary FILE:Net --input 2x3"],
    "explain": ["explain FILE", "explain FILE --execution-trace FILE", "explain FILE --by line"],
    "watch": ["watch FILE --once", "watch LOG --once --against FILE"],
    "budget": ["budget FILE"],
    "fit": ["fit --vary x={} FILE"],
    "fix": ["fix FILE"],
    "tune": ["tune --vary x={1,2} FILE"],
    "plan": ["plan FILE", "plan ./FILE"],
    "train": ["train FILE", "train FILE --resume"],
    "sweep": ["sweep FILE --grid optimizer.lr=1,2"],
    "sample": ["sample FILE"],
    "export": ["export FILE --to csv", "export FILE --to hf -o out"],
    "data show": ["data show FILE"],
    "data prepare": ["data prepare FILE --out out"],
    "audit": ["audit FILE"],
    "bench": ["bench --import FILE", "bench --show FILE"],
}
"""Each way in which a command is given a file to read."""
WITHOUT = {"data", "gpus", "dtypes", "lsp", "mcp", "serve", "tensor", "glossary", "schema"}
"""Those that read none."""
CONTENTS: dict[str, bytes | None] = {
    "absent": None,
    "text": b"a line of text\n",
    "cut": b"torchtally trace format=13 packed=48211 body=812345 blake2b=" + b"0" * 32 + b"\n",
    "bytes": bytes(range(256)),
}
TAKEN = {
    "run FILE",
    "fit --vary x={} FILE",
    "tune --vary x={1,2} FILE",
    "audit FILE",
    "data prepare FILE --out out",
}
"""What takes any file: as a script, which fails as Python would have it fail, or as a text."""
LINES = [
    (line, how)
    for lines in INPUTS.values()
    for line in lines
    for how in (*CONTENTS, "folder")
    if line not in TAKEN or CONTENTS.get(how) is None
]


def test_every_command_is_here() -> None:
    assert {words for words, _ in parsers()} == {*INPUTS} | WITHOUT


@pytest.mark.parametrize(("line", "how"), LINES)
def test_a_file_that_cannot_be_read_ends_in_the_same_code(
    line: str,
    how: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    realistic().save("run.tally")
    Path("train.py").write_text("raise AssertionError('this script is never run')")
    Path("train.log").write_text("iter 0: loss 1.0000, time 10.00ms, mfu 10.00%\n")
    content = CONTENTS.get(how)
    if content is not None:
        Path("it").write_bytes(content)
    elif how == "folder":
        Path("it").mkdir()
    names = {"FILE": "it", "TRACE": "run.tally", "SCRIPT": "train.py", "LOG": "train.log"}
    for placeholder, name in names.items():
        line = line.replace(placeholder, name)
    assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert "tally: error: " in said
    assert "it" in said.partition("tally: error: ")[2]


TRAINING = """\
steps = 2
batch = 1
sequence = 8
model = {preset = "llama-1m", vocabulary = 257, layers = 1}
data = {text = ["train.txt"]}
optimizer = {name = "sgd", lr = 0.1}
log = {folder = "run"}
"""
CHECKPOINT = "run/checkpoints/step-00000002"
OF_CHECKPOINTS = {
    f"{CHECKPOINT}/model.safetensors": ["train train.toml --resume", "sample run",
                                        "export run --to hf -o out"],
    f"{CHECKPOINT}/manifest.json": ["train train.toml --resume", "sample run"],
    "model/model.safetensors": ["sample model", "export model --to gguf -o out.gguf",
                                "plan model/model.safetensors"],
    "model/config.json": ["sample model", "plan model/config.json", "summary model/config.json"],
}  # fmt: skip
"""Files of a run and of a model for transformers, and the commands that read them."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    (folder / "train.txt").write_text("".join(f"This is line {n}.\n" for n in range(200)))
    (folder / "train.toml").write_text(TRAINING)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "train.toml"]) == 0
        assert main(["export", "run", "--to", "hf", "-o", "model"]) == 0
    return folder


@pytest.mark.parametrize(
    ("file", "line", "how"),
    [
        (file, line, how)
        for file, lines in OF_CHECKPOINTS.items()
        for line in lines
        for how in (*CONTENTS, "folder")
    ],
)
def test_a_damaged_checkpoint_ends_in_the_same_code(
    trained: Path,
    file: str,
    line: str,
    how: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    damage(Path(file), how)
    capsys.readouterr()
    assert main(line.split()) == 2
    said = capsys.readouterr().err.rpartition("tally: error: ")[2]
    assert file.split("/")[0] in said


def damage(path: Path, how: str) -> None:
    content = CONTENTS.get(how)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    elif how == "folder":
        path.mkdir()

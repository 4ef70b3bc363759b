"""One exit code for one mistake, whichever command it is made in."""

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
WITHOUT = {"data", "gpus", "dtypes", "tensor", "glossary", "schema"}
"""Those that read none."""
CONTENTS: dict[str, bytes | None] = {
    "absent": None,
    "text": b"a line of text\n",
    "cut": b"torchtally trace format=13 packed=48211 body=812345 blake2b=" + b"0" * 32 + b"\n",
    "bytes": bytes(range(256)),
}
TAKEN = {"run FILE", "fit --vary x={} FILE", "audit FILE", "data prepare FILE --out out"}
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

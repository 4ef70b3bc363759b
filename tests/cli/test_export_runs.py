"""`tally export` of a run: places, options of formats, and what is refused."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.test_text import realistic
from torchtally.cli import main
from torchtally.report.exports import export_names, exporter


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "run.tally"
    realistic().save(path)
    return str(path)


def written(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["export", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", export_names())
def test_every_format_goes_beside_the_run(
    name: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = written(file, "--to", name, capsys=capsys).splitlines()[0]
    assert place.startswith(file.removesuffix(".tally") + exporter(name).SUFFIX)
    first = Path(place).read_bytes()
    again = ["--replace"] if name == "folded" else []  # its lines have no room to say whose
    written(file, "--to", name, *again, capsys=capsys)
    assert Path(place).read_bytes() == first  # the same bytes for the same run


def test_a_file_of_its_name_is_replaced(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "step.json"
    place.write_text('{"otherData": {"exporter": "torchtally"}}')
    options = (file, "--to", "perfetto", "--gpu", "A100-SXM", "-o")
    assert written(*options, str(place), capsys=capsys) == f"{place}\n"
    document = json.loads(place.read_text())
    assert document["otherData"]["chip"] == "A100-SXM"
    assert json.loads(written(*options, "-", capsys=capsys)) == document
    packed = tmp_path / "step.json.gz"
    written(*options, str(packed), capsys=capsys)
    assert gzip.decompress(packed.read_bytes()) == place.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "perfeto"], "Did you mean perfetto?"),
        (["--to", "perfetto", "-o", "/no/such/place.json"], "/no/such/place.json: cannot be"),
        (["--to", "perfetto", "-o", "run.tally"], "run.tally: is the run itself"),
        (["--to", "perfetto", "--gpu", "8xH100-SXM"], "For one of them: --gpu H100-SXM."),
        (["--to", "perfetto", "--step", "9"], "the run completed steps 1 to 2"),
        (["--to", "perfetto", "--dtype", "float16"], "--dtype applies to models"),
        (["--to", "csv", "--of", "flops"], "--to csv exports every quantity: leave out --of."),
        (["--to", "folded", "--of", "flop"], "Did you mean flops"),
        (["--to", "hf", "--of", "flops", "-o", "m"], "--of applies to runs"),
        (["--to", "hf", "--step", "all", "-o", "m"], "exports one checkpoint"),
        (["--to", "hf"], "missing folder. Name it: -o models/mine"),
        (["--to", "memory-snapshot", "-o", "-"], "is binary, not text for stdout. Name a file"),
    ],
)
def test_what_is_refused_is_named(
    arguments: list[str],
    said: str,
    file: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(Path(file).parent)
    before = sorted(Path().iterdir())
    with pytest.raises(SystemExit) as caught:
        raise SystemExit(main(["export", "run.tally", *arguments]))
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert not out
    assert said in err
    assert sorted(Path().iterdir()) == before


def test_help_has_a_line_for_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    text = capsys.readouterr().out
    for name in export_names():
        assert f"  {name} " in text


@pytest.mark.thorough
def test_no_format_needs_torch(file: str) -> None:
    """In a fresh Python, whose imports are its own."""
    program = (
        "import sys; from torchtally.cli import main\n"
        "for name in sys.argv[2:]:\n"
        "    assert main(['export', sys.argv[1], '--to', name]) == 0\n"
        "assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", program, file, *export_names()]
    assert subprocess.run(command, stdout=subprocess.PIPE).returncode == 0

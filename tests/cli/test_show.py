"""`tally show` and `tally gpus` as a user meets them: output, exit codes, errors, closed pipes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.test_text import realistic
from torchtally.cli import COMMANDS, main, show
from torchtally.convention import Attention
from torchtally.record.file import write_trace
from torchtally.views import VIEWS

TALLY = [sys.executable, "-c", "import sys; from torchtally.cli import main; sys.exit(main())"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "run.tally"
    write_trace(realistic(), path)
    return str(path)


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    clean = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    return subprocess.run(
        [*TALLY, *arguments], capture_output=True, text=True, env=clean | environment, timeout=60
    )


def test_the_page(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", file]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("fits H100-SXM")
    assert f"tally show {file} --by line" in out
    assert not err


@pytest.mark.parametrize("key", VIEWS)
def test_every_view(key: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", file, "--by", key, "--top", "1"]) == 0
    assert "total" in capsys.readouterr().out


def test_the_choices_are_those_of_the_library() -> None:
    assert tuple(VIEWS) == show.BY
    assert tuple(Attention) == show.CONVENTIONS


def test_json_to_stdout(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chip"] == "H100-SXM"


def test_json_of_a_view_to_a_file(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "view.json"
    command = ["show", file, "--by", "op", "--top", "1", "--json", str(place)]
    assert main([*command, "--convention", "causal"]) == 0
    document = json.loads(place.read_text())
    assert document["rows"][0]["name"] == "aten.mm"
    assert document["rows_left_out"] == 1
    assert document["convention"]["attention"] == "causal"
    assert not capsys.readouterr().out


def test_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus"]) == 0
    assert "H100-SXM" in capsys.readouterr().out
    assert main(["gpus", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chips"]


# What goes wrong -------------------------------------------------------------------------------


def test_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "none.tally"]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("tally: none.tally: no such file.")
    assert "Traceback" not in err


def test_a_file_name_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "\x1b[31m.tally"]) == 1
    assert "\x1b" not in capsys.readouterr().err


def test_a_file_cut_in_half(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    whole = Path(file).read_bytes()
    Path(file).write_bytes(whole[: len(whole) // 2])
    assert main(["show", file]) == 1
    assert "cut short" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--top", "3"], ["--sort", "flops"]])
def test_top_and_sort_need_a_view(
    option: list[str], file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", file, *option]) == 2
    assert "add --by line" in capsys.readouterr().err


def test_json_to_a_place_that_is_not(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", file, "--json", "/no/such/place.json"]) == 2
    assert "/no/such/place.json: cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["show"],
        ["show", "x", "--by", "colour"],
        ["show", "x", "--top", "0"],
        ["show", "x", "--top", "many"],
        ["show", "x", "--conv", "full"],
        ["gpus", "extra"],
    ],
)
def test_a_wrong_command_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: tally" in capsys.readouterr().err


def test_ctrl_c(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torchtally.record.file.read_trace", interrupted)
    assert main(["show", file]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_error(file: str) -> None:
    with subprocess.Popen(
        [*TALLY, "gpus", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


# Terminals -------------------------------------------------------------------------------------


def test_a_pipe_gets_eighty_plain_columns(file: str) -> None:
    result = run("show", file)
    assert result.returncode == 0
    assert "\x1b" not in result.stdout
    page = result.stdout.replace(file, "run.tally")
    assert max(map(len, page.splitlines())) <= 80


def test_columns_is_respected(file: str) -> None:
    wide = run("show", file, "--by", "line", COLUMNS="200").stdout
    assert "allocated" in wide.splitlines()[1]


def test_an_ascii_terminal_is_no_reason_to_fail(file: str) -> None:
    result = run("show", file, COLUMNS="50", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert result.returncode == 0, result.stderr


# Starting up -----------------------------------------------------------------------------------


def modules_after(*arguments: str) -> set[str]:
    code = (
        "import sys; from torchtally.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )
    return set(result.stderr.split())


@pytest.mark.parametrize("arguments", [["--help"], ["show", "--help"], ["gpus", "--help"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    loaded = modules_after(*arguments)
    assert "torchtally.cli" in loaded
    assert not loaded & {"torch", "rich", "msgspec", "numpy"}


def test_showing_a_trace_does_not_load_torch(file: str) -> None:
    loaded = modules_after("show", file)
    assert "torchtally.ledger" in loaded
    assert not loaded & {"torch", "numpy"}


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], *([name] for name in COMMANDS)):
        with pytest.raises(SystemExit) as caught:
            main([*arguments, "--help"])
        assert caught.value.code == 0
        assert "examples:" in capsys.readouterr().out


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("tally ")

"""`tally show` and `tally gpus` as a user meets them: output, exit codes, errors, closed pipes."""

import gc
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.test_text import realistic
from torchtally.cli import COMMANDS, ledgers, main
from torchtally.cli.arguments import until
from torchtally.views import VIEWS
from torchtally.work.convention import Convention

pytestmark = pytest.mark.one_case_in(2)

TALLY = [sys.executable, "-c", "import sys; from torchtally.cli import main; sys.exit(main())"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "run.tally"
    realistic().save(path)
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
    assert f"tally show {file} --by module" in out
    assert not err


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("arguments", [(), ("--step", "99")], ids=["shown", "refused"])
def test_garbage_is_collected_afterwards_as_before(
    is_on: bool, arguments: tuple[str, ...], file: str
) -> None:
    """A test, a script or a notebook that calls a command goes on."""
    assert gc.isenabled()
    try:
        if not is_on:
            gc.disable()
        assert (main(["show", file, *arguments]) == 0) == (not arguments)
        assert gc.isenabled() == is_on
    finally:
        gc.enable()


WITHOUT_TOTALS = {"host", "rank", "utilisation"}
"""What does not add up."""


@pytest.mark.parametrize("key", VIEWS)
def test_every_view(key: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", file, "--by", key, "--top", "1"]) == 0
    assert ("total" in capsys.readouterr().out) == (key not in WITHOUT_TOTALS)


def test_help_lists_every_view_with_its_summary(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["show", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert len(VIEWS) == 34
    assert all(f" {view.name} {view.summary} " in said for view in VIEWS.values())


def test_the_conventions_are_those_of_the_library() -> None:
    assert tuple(Convention) == ledgers.CONVENTIONS


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
    assert document["rows"][0]["operator"] == "aten.mm"
    assert document["rows_left_out"] == 1
    assert document["convention"]["attention"] == "causal"
    assert not capsys.readouterr().out


def test_gpus(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["gpus"]) == 0
    out = capsys.readouterr().out
    assert "H100-SXM" in out
    assert "…" not in out
    assert "Hidden columns (use --columns or a wider terminal): architecture" in out
    assert main(["gpus", "--columns", "chip,architecture"]) == 0
    assert re.search(r"^  H100-SXM +Hopper GH100$", capsys.readouterr().out, re.M)
    assert main(["gpus", "T4", "--columns", "chip"]) == 2
    assert "--columns is for the list of chips" in capsys.readouterr().err
    assert main(["gpus", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chips"]


# What goes wrong -------------------------------------------------------------------------------


def test_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "none.tally"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("tally: error: none.tally: no such file.")
    assert "Traceback" not in err


def test_a_file_name_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "\x1b[31m.tally"]) == 2
    assert "\x1b" not in capsys.readouterr().err


def test_a_file_cut_in_half(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    whole = Path(file).read_bytes()
    Path(file).write_bytes(whole[: len(whole) // 2])
    assert main(["show", file]) == 2
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
    ("arguments", "said"),
    [
        (["show"], "the following arguments are required: FILE"),
        (["show", "x", "--by", "modul"], "Did you mean module"),
        (["show", "x", "--top", "0"], "'0' is not above 0"),
        (["show", "x", "--top", "many"], "'many' is not a count. These work: 70B"),
        (["show", "x", "--conv", "full"], "unknown option --conv. Did you mean --convention"),
        (["shw"], "unknown command 'shw'. Did you mean show?"),
    ],
)
def test_a_wrong_command_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    error, remedy = capsys.readouterr().err.splitlines()
    assert error.startswith("tally: error: ")
    assert said in error
    assert remedy == f"`tally {arguments[0]} --help` lists what there is." or arguments == ["shw"]


def test_ctrl_c(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torchtally.trace.Trace.load", interrupted)
    assert main(["show", file]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_reader_that_leaves_is_no_error(file: str) -> None:
    with subprocess.Popen(
        [*TALLY, "gpus", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


# Other chips, and money ------------------------------------------------------------------------

OTHERS = ["--gpu", "A100-SXM", "--gpu", "RTX-5090", "--gpu", "H200"]


def told(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, dict[str, object]], dict[str, object]]:
    """The rows of a view as JSON, by chip, and the document."""
    assert main(["show", *arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    return {row["chip"]: row for row in document["rows"]}, document


def test_chips_compared(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows, document = told([file, *OTHERS], capsys)
    assert list(rows) == ["H100-SXM", "A100-SXM", "RTX-5090", "H200-SXM"]
    assert rows["H100-SXM"]["traced"] == "*"
    assert all(row["step_s"] > 0 for row in rows.values())  # type: ignore[operator]
    assert rows["RTX-5090"]["cost_usd"] is None
    assert {"name": "energy_joules", "unit": "joules"} in document["columns"]  # type: ignore[operator]


def test_what_a_training_costs(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = told([file, "--until", "24h", "--price", "2.49"], capsys)
    row = rows["H100-SXM"]
    assert row["cost_usd"] == pytest.approx(24 * 2.49)
    assert (row["seconds"], row["gpu_hours"], row["price_source"]) == (86400, 24, "yours")


def test_a_price_of_one_of_several_chips(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    prices = ["--price", "rtx5090=0.5", "--price", "H100-SXM=3"]
    rows, _ = told([file, *OTHERS, "--until", "1d", *prices], capsys)
    assert rows["RTX-5090"]["cost_usd"] == pytest.approx(12)
    assert rows["H100-SXM"]["cost_usd"] == pytest.approx(72)
    assert rows["A100-SXM"]["price_as_of"] != "yours"


def test_a_view_timed_on_another_chip(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", file, "--by", "line", "--json"]) == 0
    here = json.loads(capsys.readouterr().out)
    assert main(["show", file, "--by", "line", "--gpu", "A100-SXM", "--json"]) == 0
    there = json.loads(capsys.readouterr().out)
    assert there["title"].endswith(", timed on A100-SXM")
    assert there["totals"]["flops_forward"] == here["totals"]["flops_forward"]
    assert there["totals"]["seconds"] > here["totals"]["seconds"]


@pytest.mark.parametrize(
    ("text", "amount", "extent"),
    [
        ("600000", 600_000, "steps"),
        ("600K", 600_000, "steps"),
        ("1e6 steps", 10**6, "steps"),
        ("1-step", 1, "steps"),
        ("24h", 86400, "seconds"),
        ("3.5d", 302400, "seconds"),
        ("90 min", 5400, "seconds"),
        ("30s", 30, "seconds"),
        ("2w", 1209600, "seconds"),
        ("15T-tokens", 15 * 10**12, "tokens"),
        ("15Ttokens", 15 * 10**12, "tokens"),
        ("15e12 tokens", 15 * 10**12, "tokens"),
    ],
)
def test_lengths(text: str, amount: float, extent: str) -> None:
    length = until(text)
    assert (length.amount, length.extent) == (amount, extent)


@pytest.mark.parametrize(
    "text",
    ["", "0", "-5", "0h", "1.5", "soon", "24hours", "24H", "nan", "inf", "1e99", "1e30h", "9" * 400,
     "9" * 400 + "h", "tokens", "15T-tokens-more", "٣h"],
)  # fmt: skip
def test_no_lengths(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["show", "x", f"--until={text}"])
    assert caught.value.code == 2
    assert "600000 (steps), 24h or 3.5d" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0", "-2", "nan", "inf", "free", "", "=2", "H200=", "H200=0"])
def test_no_prices(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["show", "x", "--until", "24h", f"--price={text}"])
    assert caught.value.code == 2
    assert "These work: 2.49" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "H100-SXN"], "Did you mean"),
        (["--gpu", "8xH100-SXM"], "For one of them: --gpu H100-SXM."),
        (["--gpu", "0xH100-SXM"], "does not name chips"),
        (["--gpu", "8xH1000-SXM"], "No chip is called"),
        (["--by", "line", "--gpu", "T4", "--gpu", "L4"], "leave out --by to compare them"),
        (["--by", "line", "--until", "24h"], "is a separate view"),
        (["--allocator", "", "--gpu", "T4"], "give one at a time"),
        (["--price", "2.49"], "add a training length (--until 600000"),
        (["--by", "peak-line", "--price", "2.49"], "--price changes nothing in --by peak-line"),
        (["--gpu", "T4", "--price", "2.49"], "several chips are shown. Name one: --price T4=2.49."),
        (["--gpu", "T4", "--price", "L4=2.49"], "L4 is not shown here; add --gpu L4."),
        (["--until", "1T-tokens"], "tokens per step"),
    ],
)
def test_what_cannot_be_compared(
    arguments: list[str], said: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", file, *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert said in err


def test_one_of_a_chip_is_that_chip(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows, _ = told([file, "--gpu", "1xA100-SXM"], capsys)
    assert list(rows) == ["H100-SXM", "A100-SXM"]


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", [OTHERS, ["--until", "24h"], [*OTHERS, "--until", "3.5d"]])
def test_money_in_eighty_columns(arguments: list[str], file: str) -> None:
    result = run("show", file, *arguments)
    assert result.returncode == 0, result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "cost" in result.stdout.splitlines()[1]


def test_chosen_columns_of_the_page(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", file, "--columns", "bytes_read,count"]) == 0
    page = capsys.readouterr().out
    head = page[page.index("By phase") :].splitlines()[1]
    assert head.split() == ["phase", "read", "ops"]
    assert main(["show", file, "--columns", "bytes_rad"]) == 2
    assert "--columns bytes_rad: unknown. Did you mean bytes_read" in capsys.readouterr().err


# Terminals -------------------------------------------------------------------------------------


def test_a_pipe_gets_eighty_plain_columns(file: str) -> None:
    result = run("show", file)
    assert result.returncode == 0
    assert "\x1b" not in result.stdout
    page = result.stdout.replace(file, "run.tally")
    assert max(map(len, page.splitlines())) <= 80


@pytest.mark.thorough
def test_columns_is_respected(file: str) -> None:
    wide = run("show", file, "--by", "line", COLUMNS="200").stdout
    assert "allocated" in wide.splitlines()[1]


@pytest.mark.thorough
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


@pytest.mark.parametrize(
    "arguments", [["--help"], ["show", "--help"], ["gpus", "--help"], ["plan", "--help"]]
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    loaded = modules_after(*arguments)
    assert "torchtally.cli" in loaded
    assert not loaded & {"torch", "rich", "numpy"}


@pytest.mark.parametrize("options", [[], OTHERS, ["--until", "24h"]])
def test_showing_a_trace_does_not_load_torch(options: list[str], file: str) -> None:
    loaded = modules_after("show", file, *options)
    assert "torchtally.ledger" in loaded
    assert not loaded & {"torch", "numpy"}


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], *([name] for name in COMMANDS)):
        with pytest.raises(SystemExit) as caught:
            main([*arguments, "--help"])
        assert caught.value.code == 0
        printed = capsys.readouterr().out
        assert printed.startswith(f"usage: {' '.join(['tally', *arguments])} ")
        assert "examples:" in printed


def test_help_lists_every_command_once_by_its_task(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert re.findall(r"^  (\w+)  +\w", printed, re.M)[: len(COMMANDS)] == list(COMMANDS)
    assert printed.index("\ntrain:") < printed.index("\n  train  ") < printed.index("\nlook things")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("tally ")


def test_help_of_tally_loads_no_view_and_no_torch() -> None:
    code = (
        "import sys\nfrom torchtally.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1].split()
    assert "torchtally.cli.show" in loaded
    assert not {"torch", "rich", "msgspec", "numpy", "torchtally.views"}.intersection(loaded)


# First contact ------------------------------------------------------------------------------------


def test_tally_alone_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    """As argparse does for a missing command, the exit code says that nothing was done."""
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out.startswith("usage: tally")
    assert "tally run train.py" in out
    assert not err


A100 = "A100: taken as A100-SXM (80 GB); others: A100-PCIe-40GB, A100-PCIe, A100-SXM-40GB"


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "FILE", "--gpu", "A100"],
        ["show", "FILE", "--by", "line", "--gpu", "A100"],
        ["gpus", "A100"],
        ["plan", "7B", "--tokens", "1T", "--mfu", "0.4", "--gpus", "8xA100"],
        ["plan", "7B", "--tokens", "1T", "--mfu", "0.4", "--gpus", "B200", "--compare", "A100"],
    ],
    ids=" ".join,
)
def test_a_familys_name_is_taken_and_said_once(
    arguments: list[str], file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([file if word == "FILE" else word for word in arguments]) == 0
    out, err = capsys.readouterr()
    assert err == f"tally: {A100}\n"
    assert "A100-SXM" in out
    assert "taken as" not in out


def test_a_chips_own_name_is_taken_without_a_word(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", file, "--gpu", "A100-SXM"]) == 0
    assert not capsys.readouterr().err


# Streams that cannot be written -------------------------------------------------------------------


def shell(line: str, file: str) -> "subprocess.CompletedProcess[str]":
    """A command line of a shell, in which `tally` and FILE are ours."""
    tally = shlex.join(TALLY)
    script = f'tally() {{ {tally} "$@"; }}; FILE={shlex.quote(file)}; {line}'
    return subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("tally show $FILE >&-", 1, "the report cannot be printed: stdout is closed."),
        ("tally show $FILE >/dev/full", 1, "cannot be written (No space left on device)."),
        ("tally gpus --json >/dev/full", 1, "cannot be written (No space left on device)."),
        ("tally --help >/dev/full", 1, "cannot be written (No space left on device)."),
        ("tally --version >/dev/full", 1, "cannot be written (No space left on device)."),
        ("tally >/dev/full", 1, "cannot be written (No space left on device)."),
    ],
)
def test_a_stdout_that_takes_nothing_is_an_error(
    line: str, code: int, said: str, file: str
) -> None:
    done = shell(line, file)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("tally: error: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.thorough
def test_a_reader_that_leaves_early_ends_the_command_in_silence(file: str) -> None:
    done = shell('tally show $FILE --by op --json | head -1; exit "${PIPESTATUS[0]}"', file)
    assert (done.stdout, done.stderr) == ("{\n", "")
    assert done.returncode in (0, 141)  # 0 where all was written before it left


def test_an_error_without_a_stderr_still_has_its_exit_code(file: str) -> None:
    for line in ("tally show none 2>&-", "tally show none 2>/dev/full"):
        assert shell(line, file).returncode == 2


def test_rows_by_conditions_and_columns_that_are_hidden(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["show", file, "--by", "op", "--filter", "operator~MM", "--filter", "flops>1G"]
    assert main([*words, "--columns", "copies,count,operator"]) == 2
    assert "copies" in capsys.readouterr().err
    assert main([*words, "--columns", "operator,count", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"] == [{"operator": "aten.mm", "count": 2}]
    assert (document["rows_filtered_out"], document["totals"]["count"]) == (1, 3)
    assert "Rows with operator~MM and flops>1G: 1 of 2, 100.0 % of time." in document["note"]
    assert main(["show", file, "--by", "line", "--columns", "views,copies", "--json"]) == 0
    names = [column["name"] for column in json.loads(capsys.readouterr().out)["columns"]]
    assert names == ["views", "copies", "line", "source", "bound"]
    assert main(["show", file, "--filter", "flops>1"]) == 2
    assert "need a view" in capsys.readouterr().err

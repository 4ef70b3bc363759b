"""Families of chips and TALLY_GPU, in every command that takes a chip."""

import re
import subprocess
from itertools import cycle
from pathlib import Path

import pytest

from tests.cli.run_tally import END, TALLY, TIMEOUT_S, environment
from tests.profiles.kineto_files import linear_step
from tests.report.test_text import realistic
from tests.warm import warm
from torchtally.cli import COMMANDS, main

pytestmark = pytest.mark.one_case_in(3)

FAMILIES = {
    "H100": (
        "H100-SXM (80 GB); others: H100-SXM-96GB, H100-PCIe, H100-NVL",
        "NVIDIA H100 80GB HBM3",
    ),
    "A100": (
        "A100-SXM (80 GB); others: A100-PCIe-40GB, A100-PCIe, A100-SXM-40GB",
        "NVIDIA A100-SXM4-80GB",
    ),
    "4090": ("RTX-4090 (24 GB)", "NVIDIA GeForce RTX 4090"),
}
"""What is said of each, and the name that torch has for the chip."""

AT_ONCE = {
    "show": ("show", "run.tally", "--gpu", "{}"),
    "report": ("report", "run.tally", "-o", "-", "--gpu", "{}"),
    "export": ("export", "run.tally", "--to", "markdown", "-o", "-", "--gpu", "{}"),
    "show, compared": ("show", "run.tally", "--gpu", "B200", "--gpu", "{}"),
    "plan": ("plan", "7B", "--tokens", "1T", "--mfu", "0.4", "--gpus", "8x{}"),
    "plan, compared": ("plan", "7B", "--tokens", "1T", "--mfu", "0.4", "--gpus", "B200",
                       "--compare", "{}"),
    "gpus": ("gpus", "{}"),
    "explain": ("explain", "trace.json", "--gpu", "{}"),
    "watch": ("watch", "train.log", "--once", "--against", "run.tally", "--gpu", "{}"),
}  # fmt: skip
BY_PROCESS = {
    "run": ("run", "train.py", "--gpu", "{}"),
    "fit": ("fit", "train.py", "--vary", "{{}}", "--to", "2", "--gpu", "{}"),
    "fix": ("fix", "train.py", "--gpu", "{}"),
    "tune": ("tune", "train.py", "--gpu", "{},A100"),
    "audit": ("audit", "train.py", "--gpu", "{}"),
    "train": ("train", "--plan", "tiny.toml", "--gpu", "{}"),
    "summary": ("summary", "net.py:Net", "--input", "2x4", "--gpu", "{}"),
}
WITHOUT_CHIPS = {
    "budget",
    "data",
    "diff",
    "dtypes",
    "glossary",
    "lsp",
    "mcp",
    "sample",
    "schema",
    "serve",
    "sweep",
    "tensor",
}
FULL_SCREEN = {"view"}
"""Tested in test_view.py: it needs a terminal."""
MEASURED = {"bench"}
"""`--show NAME` looks up what was measured: there is nothing where nothing was."""
OF_THE_VARIABLE = ("run", "fit", "train", "summary")
"""Commands that need a chip. Of the others each has a better one, or needs none."""

SCRIPT = """\
import torch
weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
print(torch.cuda.get_device_name())
weight.sum().backward()
torch.optim.SGD([weight]).step()
"""
CONFIG = """\
steps = 1
batch = 1
[data]
text = ["text.txt"]
[model]
layers = 1
heads = 1
width = 8
context = 8
ffn = 8
vocabulary = 256
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    realistic().save(tmp_path / "run.tally")
    linear_step().write(tmp_path / "trace.json")
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "train.log").write_text("iter 10: loss 2.3456, time 135.20ms, mfu 31.02%\n")
    (tmp_path / "text.txt").write_text("".join(f"line {n}\n" for n in range(2000)))
    (tmp_path / "tiny.toml").write_text(CONFIG)
    (tmp_path / "net.py").write_text(
        "from torch import nn\n\ndef Net():\n    return nn.Linear(4, 4)\n"
    )


def tally(*arguments: str, variable: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        warm(TALLY + END, *arguments), capture_output=True, text=True,
        timeout=TIMEOUT_S,
        env=environment() | {"TALLY_GPU": variable, "CUDA_VISIBLE_DEVICES": ""}, check=False,
    )  # fmt: skip


def test_every_command_with_chips_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    tested = {words[0] for words in (*AT_ONCE.values(), *BY_PROCESS.values())}
    assert tested | MEASURED | FULL_SCREEN | WITHOUT_CHIPS == set(COMMANDS)
    for command in COMMANDS:
        with pytest.raises(SystemExit):
            main([command, "--help"])
        takes_chips = bool(re.search(r"--gpus? |tally gpus NAME", capsys.readouterr().out))
        assert takes_chips or command in {*WITHOUT_CHIPS, *MEASURED, "gpus"}, command


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("words", AT_ONCE.values(), ids=AT_ONCE)
def test_a_family_is_taken_and_said_once(
    words: tuple[str, ...], family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said, _ = FAMILIES[family]
    assert main([word.format(family) for word in words]) == 0
    out, err = capsys.readouterr()
    assert err == f"tally: {family}: taken as {said}\n"
    assert said.partition(" ")[0] in out


@pytest.mark.parametrize(
    ("command", "family"),
    [("run", "H100"), ("fit", "A100"), ("audit", "4090"), ("train", "H100"), ("summary", "A100")],
)
def test_a_family_is_taken_where_a_script_runs(command: str, family: str) -> None:
    said, device = FAMILIES[family]
    done = tally(*(word.format(family) for word in BY_PROCESS[command]), variable="T4")
    assert done.stderr.count(f"tally: {family}: taken as {said}\n") == 1, done.stderr
    assert "T4" not in done.stdout + done.stderr
    if command == "run":
        assert done.stdout == f"{device}\n"
    elif command != "audit":  # which stops: there is no GPU
        assert said.partition(" ")[0] in done.stdout, done.stderr


@pytest.mark.parametrize(("command", "family"), list(zip(OF_THE_VARIABLE, cycle(FAMILIES))))
def test_the_variable_names_the_chip_that_no_option_names(command: str, family: str) -> None:
    said, _ = FAMILIES[family]
    done = tally(*BY_PROCESS[command][:-2], variable=family)
    assert done.returncode == 0, done.stderr
    assert f"tally: no --gpu: {family}, by TALLY_GPU\n" in done.stderr
    assert done.stderr.count(f"tally: {family}: taken as {said}\n") == 1
    assert said.partition(" ")[0] in (done.stderr if command == "run" else done.stdout)


@pytest.mark.parametrize("option", ["--gpu", "--gpus"])
def test_gpu_and_gpus_are_one_option(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "llama-3-8b", f"{option}=8xH100-SXM"]) == 0
    assert main(["plan", "llama-3-8b", option, "8xH100-SXM"]) == 0
    assert "8 H100-SXM" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("show", "run.tally"), ("plan", "llama-3-8b"), ("gpus",)])
def test_the_variable_changes_no_command_that_needs_no_chip(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    for variable in ("", "4090"):
        monkeypatch.setenv("TALLY_GPU", variable)
        assert main(list(words)) == 0
        answers.append(capsys.readouterr())
    assert answers[0] == answers[1]


def test_an_unknown_chip_in_the_variable_is_an_error() -> None:
    done = tally("run", "train.py", variable="H1000")
    assert done.returncode == 2
    assert "No chip is called 'H1000'" in done.stderr

"""The command line of `tally train`: options, CONFIG and keys in any order; the extra it needs."""

import subprocess
import sys
from pathlib import Path

import pytest

from torchtally.cli import main, parser
from torchtally.cli.declared import asked
from torchtally.cli.train import TrainOptions, _config
from torchtally.train.keys import HINTS

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "byte_gpt.toml")
KEYS = ["--steps", "100", "--optimizer.lr", "3e-4"]


@pytest.mark.parametrize(
    "arguments",
    [
        [EXAMPLE, *KEYS, "--resume", "--gpu", "A100"],
        ["--resume", "--gpu=A100", *KEYS, EXAMPLE],
        [*KEYS, "--gpu", "A100", EXAMPLE, "--resume"],
        ["--resume", EXAMPLE, "--gpu", "A100", *KEYS],
        ["--resume", "--gpu", "A100", *KEYS, "--", EXAMPLE],
        [EXAMPLE, "--resume", "--gpu", "A100", "--", *KEYS],
    ],
)
def test_options_and_keys_stand_anywhere(arguments: list[str]) -> None:
    options = asked(TrainOptions, parser(["train"]).parse_args(["train", *arguments]))
    assert (options.config, list(options.changes)) == (EXAMPLE, KEYS)
    assert (options.resumes, options.gpu, options.replaces) == (True, "A100", False)
    config = _config(options)
    assert (config.steps, config.optimizer.lr, config.batch) == (100, 3e-4, 8)
    assert config.learning_rate.schedule(config.steps).factor(0) == 1 / 100


def test_behind_two_dashes_the_config_may_be_called_anything() -> None:
    args = parser(["train"]).parse_args(
        ["train", "--data.text", "b.txt", "--", "config", "--seed=2"]
    )
    assert (args.config, args.changes) == ("config", ["--data.text", "b.txt", "--seed=2"])


def test_without_a_config(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["train", "--plan"])
    assert error.value.code == 2
    assert "CONFIG" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (["--stepz", "3"], "--stepz: unknown key. Did you mean steps?"),
        (["--no-compil"], "--no_compil: unknown key. Did you mean compile?"),
        (["--steps", "abc"], "--steps: expected a whole number above 0, got 'abc'."),
        (["--optimizer.implementation=fuse"], "got 'fuse'. Did you mean fused?"),
        (["--no-compile", "--seed", "x"], "--seed: expected a whole number, 0 or more, got 'x'."),
        (["--steps"], "--steps: expected one value, got none."),
        (
            ["--optimizer.betas", "0.9", "x", "--steps", "5"],
            "--optimizer.betas: expected an array such as [0.9, 0.95], of numbers in [0, 1)",
        ),
    ],
)
def test_a_wrong_change_is_an_error_like_any_other(
    changes: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", EXAMPLE, *changes]) == 2
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith("tally: error: ")
    assert complaint in first
    assert rest == [f"`tally train {EXAMPLE} --help` lists all keys."]


def test_help_behind_a_config_lists_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["train", EXAMPLE, "--help"])
    assert end.value.code == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert max(map(len, lines)) <= 80
    assert {line[4:].partition(" ")[0] for line in lines if line.startswith("  --")} == {*HINTS}
    assert (
        "  --batch 8                         a whole number above 0. Sequences (rows) per" in lines
    )


WITHOUT = """\
import sys
for name in ("jaxtyping", "safetensors"):
    sys.modules[name] = None
from torchtally.cli import main
sys.exit(main(sys.argv[1:]))
"""
SCRIPT = """\
import torch
x = torch.zeros(4, 4, device="cuda", requires_grad=True)
(x @ x).sum().backward()
"""


def run_without_the_extra(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments], capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", EXAMPLE],
        ["sweep", EXAMPLE, "--grid", "optimizer.lr=0.1,0.2", "--dry-run"],
        ["data", "show", EXAMPLE],
    ],
)
def test_training_names_the_extra_it_needs(arguments: list[str]) -> None:
    done = run_without_the_extra(*arguments)
    assert done.returncode == 2
    assert "training needs jaxtyping, safetensors" in done.stderr
    assert 'pip install "torchtally[train]"' in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
def test_nothing_else_needs_the_extra(tmp_path: Path) -> None:
    script, trace = tmp_path / "script.py", tmp_path / "run.tally"
    script.write_text(SCRIPT)
    gpu = ("--gpu", "H100-SXM")
    for arguments in (
        ("run", *gpu, "-o", str(trace), str(script)),
        ("show", str(trace)),
        ("plan", "llama-3-8b", "--gpus", "8xH100-SXM"),
    ):
        done = run_without_the_extra(*arguments)
        assert done.returncode == 0, done.stderr
        assert "H100" in done.stdout + done.stderr

"""What is missing of an installation is one sentence with the command that helps."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchtally.cli import main
from torchtally.cli.gpus import GpusOptions
from torchtally.cli.installation import OLDEST, lack
from torchtally.torch_private.releases import RELEASES

HIDES = "import sys; sys.modules[{name!r}] = None\n"
"""Imports of a module fail as where it is not installed."""


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        ("torch", ["run", "train.py"], "PyTorch is not installed, which this needs: pip install"),
        ("torch", ["summary", "net.py:Net"], "PyTorch is not installed"),
        ("fcntl", ["run", "train.py"], "On Windows use WSL, which has it: wsl --install"),
        ("torch", ["fit", "train.py", "--vary", "--batch={}"], "PyTorch is not installed"),
        ("fcntl", ["fit", "train.py", "--vary", "--batch={}"], "this needs Linux or macOS"),
        ("fcntl", ["train", "config.toml"], "this needs Linux or macOS, for Python's fcntl."),
    ],
)
def test_a_command_says_what_it_lacks(
    name: str, words: list[str], sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDES.format(name=name))
    (tmp_path / "train.py").write_text("print('never')\n")
    (tmp_path / "config.toml").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "torchtally", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"tally: error: {sentence}" in done.stderr or sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert "never" not in done.stdout


def test_a_torch_that_is_too_old_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(options: GpusOptions) -> int:
        raise AttributeError("module 'torch.library' has no attribute 'register_fake'")

    monkeypatch.setattr("torchtally.cli.gpus.command", missing)
    with pytest.raises(AttributeError):  # our own mistake, with the torch that is here
        main(["gpus"])
    monkeypatch.setattr("torch.__version__", "2.4.1+cpu")
    assert main(["gpus"]) == 1
    err = capsys.readouterr().err
    assert "tally: error: PyTorch 2.4.1+cpu is too old for this" in err
    assert "pip install --upgrade 'torch>=2.11'" in err


def test_other_errors_are_none_of_an_installation() -> None:
    assert lack(ModuleNotFoundError("x", name="timm")) is None
    assert lack(ImportError("x")) is None
    assert min(release.version for release in RELEASES) == OLDEST
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert '"torch>={}.{}"'.format(*OLDEST) in project

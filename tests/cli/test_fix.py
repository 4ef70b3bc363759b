"""`tally fix` changes a script, and shows what that brings."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.run_tally import END, TALLY, environment
from tests.fixes.training import SOURCE
from tests.warm import warm
from torchtally.cli import main

GPU = ("--gpu", "T4")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    return path


def fix(script: Path, *words: str, sizes: tuple[int, int] = (256, 64)) -> tuple[int, str, str]:
    done = subprocess.run(
        warm(TALLY + END, "fix", *words, script.name, *map(str, sizes)),
        cwd=script.parent, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_a_script_is_made_to_fit_and_the_patch_is_its_proof(script: Path) -> None:
    """Blocks keep 524,288 x 256 numbers many times; made again, they leave the head's logits."""
    words = (*GPU, "--fit", "--json", "-", "--quiet")
    code, shown, _ = fix(script, *words, sizes=(256, 524288))
    document = json.loads(shown)
    assert code == 0
    assert document["kept"] == ["checkpointed blocks"]
    assert document["fits"]
    assert "+            x = checkpoint(block, x, use_reentrant=False)" in document["patch"]
    runs = {row["source_change"]: row for row in document["tables"]["tried"]["rows"]}
    before, after = runs["as it is"], runs["checkpointed blocks"]
    assert after["peak_reserved_bytes"] < before["peak_reserved_bytes"]
    assert after["saved_share"] == pytest.approx(
        1 - after["peak_reserved_bytes"] / before["peak_reserved_bytes"]
    )
    assert script.read_text() == SOURCE


def test_applied_changes_are_those_that_were_shown(script: Path) -> None:
    sizes = (1024, 64)  # more parameters than numbers that a step calculates
    code, shown, said = fix(script, *GPU, "--faster", "--apply", "--quiet", sizes=sizes)
    assert code == 0
    assert "faster on T4 with" in shown
    assert "+        fused=True," in shown
    assert "written; as it was: train.py.orig" in said
    assert "fused=True" in script.read_text()
    assert script.with_name("train.py.orig").read_text() == SOURCE


def test_a_script_that_fits_needs_no_change(script: Path) -> None:
    code, shown, _ = fix(script, *GPU, "--fit", "--quiet", sizes=(64, 64))
    assert code == 0
    assert shown.startswith("fits T4 as it is: ")
    assert "No change is needed; the smallest GPU that holds it is" in shown


def test_what_does_not_apply_is_listed_with_its_reason(script: Path) -> None:
    """A module in another encoding is left alone, and V100 has no bfloat16 to compute in."""
    script.write_text(SOURCE.replace("import sys\n", "import sys\n\nimport old\n"))
    script.with_name("old.py").write_bytes(
        b"# coding: latin-1\nimport torch\nword = '\xe9'\nx = torch.ones(1, device='cuda') + 1\n"
    )
    words = ("--gpu", "V100-SXM-32GB", "--faster", "--change-values", "--json", "-", "--quiet")
    code, shown, _ = fix(script, *words, sizes=(1024, 64))
    assert code == 0
    reasons = {each["name"]: each["reason"] for each in json.loads(shown)["skipped"]}
    assert reasons["old.py"] == "left alone: not UTF-8"
    assert "GradScaler" in reasons["autocast"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--fit", "--faster"), "--fit and --faster are two goals"),
        (("--memory-budget", "1GiB", "--faster", "t.py"), "it tries no other change"),
        (("-m", "train"), "give that instead of -m"),
        (("gone.py",), "gone.py"),
        (("notes.ipynb",), "changes Python files (.py) alone"),
        ((), "missing script"),
    ],
)
def test_what_cannot_be_changed_is_refused(
    words: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.ipynb").write_text('{"cells": [], "metadata": {}, "nbformat": 4}')
    assert main(["fix", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_budget_is_met_by_what_is_recomputed(script: Path) -> None:
    """Slower than the script as it is, and not as slow as with every block recomputed whole."""
    words = (*GPU, "--memory-budget", "1.5GiB", "--json", "-", "--quiet")
    code, shown, _ = fix(script, *words, sizes=(256, 65536))
    document = json.loads(shown)
    assert code == 0
    assert document["kept"] == ["selective checkpoint"]
    assert (document["goal"], document["fits"]) == ("budget", True)
    before, whole, selective = document["tables"]["tried"]["rows"]
    assert before["peak_reserved_bytes"] > 3 * 2**29 >= selective["peak_reserved_bytes"]
    assert whole["peak_reserved_bytes"] <= selective["peak_reserved_bytes"]
    assert whole["step_s"] > selective["step_s"] > before["step_s"]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("raise ValueError('mine')\n", "fails as it is"),
        ("import torch\ntorch.ones(4, device='cuda')\n", "no training to change"),
    ],
    ids=["fails", "no training"],
)
def test_a_script_without_a_training_is_left_alone(
    source: str, sentence: str, script: Path
) -> None:
    script.write_text(source)
    code, _, said = fix(script, *GPU, "--quiet")
    assert code == 2
    assert sentence in said

"""`tally tune` as a process: settings, fixes and chips, Ctrl-C, and what it goes on from."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run_tally import END, TALLY, environment
from tests.fixes.training import SOURCE
from tests.warm import warm
from torchtally.cli import main

ROWS = "train(int(sys.argv[1]), int(sys.argv[2]))"
FLAG = 'train(int(sys.argv[1]), int(sys.argv[2].removeprefix("--rows=")), 2)'


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SOURCE.replace(ROWS, FLAG))
    return path


def command(*words: str) -> list[str]:
    return warm(TALLY + END, "tune", "train.py", "256", *words)


def tune(script: Path, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        command(*words), cwd=script.parent, env=environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def document(script: Path, *words: str) -> Any:
    code, shown, said = tune(script, *words, "--json", "-", "--quiet")
    assert code == 0, said
    return json.loads(shown)


def test_settings_fixes_and_chips_are_searched(script: Path) -> None:
    known = document(
        script, "--vary", "--rows={1024,4096}", "--gpus", "RTX-4090,L4", "--with-fixes",
        "fused-optimizer", "--tokens", "1M", "--deadline", "1h", "--svg", "f.svg",
        "--resume", "points.json",
    )  # fmt: skip
    points = known["points"]
    assert known["settings_varied"] == ["--rows={}", "fused optimizer"]
    assert {each["gpus"] for each in points} == {"RTX-4090", "L4"}
    shown = [each for each in points if each["on_front"]]
    assert all(each["ran_on"] == each["gpus"] for each in shown)
    assert [each["seconds"] for each in shown] == sorted(each["seconds"] for each in shown)
    fastest = shown[0]
    assert fastest["setting_values"][0] == "4096"
    assert fastest["seconds"] == pytest.approx(fastest["step_s"] * -(-(10**6) // 4096))
    assert fastest["cost_usd"] == pytest.approx(
        fastest["gpus_usd_per_hour"] * fastest["seconds"] / 3600
    )
    assert "+        fused=True," in fastest["patch"]
    assert all(each["floor_s"][each["gpus"]] <= each["step_s"] for each in shown)
    assert points[known["cheapest"]]["cost_usd"] == min(each["cost_usd"] for each in shown)
    assert (script.parent / "f.svg").read_text().startswith("<svg")
    assert json.loads((script.parent / "points.json").read_text())["search"] == known["search"]


def test_fixes_that_do_not_apply_are_left_out_or_listed(script: Path) -> None:
    fixes = "fused-optimizer,optimizer-in-a-loop,Trainer-checkpoints"
    known = document(script, "--rows=64", "--with-fixes", fixes, "--gpus", "T4")
    assert known["settings_varied"] == ["fused optimizer", "optimizer in a loop"]
    failed = {tuple(each["setting_values"]): each["failure"] for each in known["points"]}
    both = failed.pop(("on", "on"))
    assert both.startswith("the fixes do not apply together: needs an Adam")
    assert len(failed) == 3
    assert not any(failed.values())


def test_points_of_a_file_take_the_prices_of_now(script: Path) -> None:
    words = ("--rows=64", "--vary", "SEEN={1,2}", "--resume", "points.json", "--gpus")
    for usd in (1.0, 2.0):
        known = document(script, *words, "T4,L4", "--price", f"T4={usd}", "--price", f"L4={usd}")
        assert {each["gpus_usd_per_hour"] for each in known["points"]} == {usd}
    code, _, said = tune(script, *words, "T4")
    assert code == 2
    assert "--resume points.json: it has points of L4, which are not among --gpus" in said


def test_out_of_memory_is_listed_with_its_reason(script: Path) -> None:
    code, shown, said = tune(script, "--vary", "--rows={64,16777216}", "--gpus", "T4")
    assert code == 0
    assert "compute-bound" in shown or "Pareto front" in shown
    assert "--rows=16777216  torch.OutOfMemoryError: CUDA out of memory." in shown
    assert "tally: T4, --rows=64: step" in said
    assert "  a  python train.py 256 --rows=64\n" in shown


def test_ctrl_c_prints_what_is_known_and_resume_goes_on(script: Path) -> None:
    words = ("--vary", "--rows={64,128,256,512,1024,2048}", "--gpus", "T4", "--jobs", "1",
             "--resume", "points.json")  # fmt: skip
    running = subprocess.Popen(
        command(*words), cwd=script.parent, env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert running.stderr is not None
    for line in running.stderr:
        if "--rows=64: step" in line:
            break
    os.kill(running.pid, signal.SIGINT)
    shown, _ = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "It was interrupted" in shown
    assert "--rows=64" in shown
    kept = json.loads((script.parent / "points.json").read_text())
    assert kept["was_interrupted"]
    first = next(each for each in kept["points"] if each["setting_values"] == ["64"])
    marked = json.dumps(kept).replace(json.dumps(first["step_s"]), "0.125")
    (script.parent / "points.json").write_text(marked)
    known = document(script, *words)
    assert len(known["points"]) == 6
    by_rows = {each["setting_values"][0]: each["step_s"] for each in known["points"]}
    assert by_rows["64"] == 0.125  # not run again
    assert not known["was_interrupted"]
    script.write_text(script.read_text() + "\n")
    code, _, said = tune(script, *words)
    assert code == 2
    assert "points are of another script" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--vary", "--rows"), "with values in braces"),
        (("--gpus", "T4"), "nothing to choose from"),
        (("--with-fixes", "speed"), "--with-fixes speed: unknown"),
        (("--vary", "--a={1,2}", "--vary", "--a={3,4}"), "varied twice"),
        (("--vary", "--a={1,2}", "--gpus", "MI300X"), "not modelled"),
        (("--vary", "--a={1,2}", "--resume", "train.py"), "nothing in it says that tally wrote it"),
        (("--vary", "--a={1,2}", "--price", "H100-SXM=2", "--gpus", "T4"), "is not shown here"),
    ],
)
def test_what_is_no_search_is_refused(
    words: tuple[str, ...],
    sentence: str,
    script: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(script.parent)
    assert main(["tune", *words, "train.py"]) == 2
    assert sentence in capsys.readouterr().err

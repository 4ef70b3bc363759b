"""Which steps of a run are reported, and the whole run: `tally run --steps` and `show --step`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.run_tally import tally_run
from tests.traces import traced
from torchtally.cli import main
from torchtally.trace import Trace

EXPERIMENTS = """\
import torch

def train(width, steps):
    model = torch.nn.Linear(width, width, bias=False).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        with torch.no_grad():
            model(torch.ones(4, width, device="cuda"))
        model(torch.ones(4, width, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

train(16, 1)
train(32, 5)
train(64, 3)
print("the end")
"""
"""One step, then five and three of larger models."""


def flops(width: int) -> int:
    """Of a step's products: one forward, one for the gradient of the weight."""
    return 2 * 2 * 4 * width * width


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "experiments.py"
    path.write_text(EXPERIMENTS)
    return path


def test_by_default_a_script_is_stopped_at_the_second_step_of_a_model(script: Path) -> None:
    """The first model has one step only, which is no reason to report it."""
    run = tally_run(str(script), cwd=script.parent)
    assert (run.code, run.stdout, run.trace.ending.kind) == (0, "", "steps")
    assert len(run.trace.step_ends) == 3
    text = " ".join(run.stderr.split())
    assert "per steady-state step 3, 1.02 K parameters" in text
    assert "The run: 3 steps of 2 models" in text
    assert "The script was stopped there; --steps all runs it to its end." in text


def test_a_number_of_steps_is_of_the_whole_run(script: Path) -> None:
    assert len(tally_run("--steps", "2", str(script), cwd=script.parent).trace.step_ends) == 2


def test_all_steps_are_one_command(script: Path) -> None:
    run = tally_run("--steps", "all", str(script), "--json", "all.json", cwd=script.parent)
    assert (run.stdout, run.trace.ending.kind) == ("the end\n", "exit")
    document = json.loads((script.parent / "all.json").read_text())
    assert document["per"] == "the whole run (9 training steps)"
    trained = flops(16) + 5 * flops(32) + 3 * flops(64)
    assert (
        document["totals"]["flops_matmul"] == trained + trained // 2
    )  # evaluation is a forward pass
    assert document["totals"]["flops_evaluation"] == trained // 2
    assert (document["run"]["models"], document["parameters"]) == (3, None)
    text = " ".join(run.stderr.split())
    assert "The run: 9 steps of 3 models" in text
    assert "Evaluation, outside of all steps, is" in text
    assert "was stopped" not in text
    for steps in ("1 ", "2 ", "3 to 6 ", "7 ", "8 to 9 "):
        assert f"\n  {steps}" in run.stderr


@pytest.fixture
def file(tmp_path: Path) -> str:
    trace: Trace = traced(lambda: exec(EXPERIMENTS, {}))
    trace.save(tmp_path / "run.tally")
    return str(tmp_path / "run.tally")


Show = Callable[..., dict]


@pytest.fixture
def shown(file: str, tmp_path: Path) -> Show:
    def show(*options: str) -> dict:
        path = tmp_path / "shown.json"
        assert main(["show", file, *options, "--json", str(path)]) == 0
        document: dict = json.loads(path.read_text())
        return document

    return show


@pytest.mark.parametrize(
    ("step", "period", "matmul"),
    [
        ("1", "step 1 (with all before it)", flops(16)),
        ("2", "step 2 (the first of another model)", flops(32)),
        ("4", "steady-state step 4", flops(32)),
        ("9", "steady-state step 9", flops(64)),
        ("2..4", "steps 2 to 4", 3 * flops(32) * 3 // 2),
        ("7..7", "step 7 (the first of another model)", flops(64)),
    ],
)
def test_any_step_can_be_shown(step: str, period: str, matmul: int, shown: Show) -> None:
    """A single one without its evaluation, which is half as much again."""
    document = shown("--step", step)
    assert document["per"] == period
    assert document["totals"]["flops_matmul"] == matmul


def test_a_view_of_a_step(shown: Show) -> None:
    document = shown("--step", "4", "--by", "phase")
    assert [row["phase"] for row in document["rows"]][:2] == ["forward", "backward"]
    whole = shown("--step", "all", "--by", "phase")
    assert "evaluation" in {row["phase"] for row in whole["rows"]}


def test_the_view_by_step_is_of_the_whole_run_whichever_step_is_shown(shown: Show) -> None:
    """But for energy, which is by the mean power of the step that is shown."""
    document = shown("--by", "step")
    of_third = shown("--step", "3", "--by", "step")
    for each in (document, of_third):
        for row in (*each["rows"], each["totals"]):
            row["energy_joules"] = None
        each["columns"] = [column["name"] for column in each["columns"]]
    assert document == {**of_third, "per": document["per"]}
    rows = {row["step_range"]: row for row in document["rows"]}
    assert list(rows) == ["1", "2", "3 to 6", "7", "8 to 9"]
    assert rows["3 to 6"]["like"] == "like 2"
    assert rows["7"]["remark"] == "model 3, with all before it"
    assert sum(row["run_share"] for row in rows.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("10", "--step 10: the run completed steps 1 to 9."),
        ("3..12", "--step 3..12: the run completed steps 1 to 9."),
        ("5..2", "--step 5..2: the run completed steps 1 to 9."),
        ("0", "--step: '0' is not above 0"),
        ("last", "--step: 'last' is not a count"),
        ("2..", "--step: '' is not a count"),
    ],
)
def test_a_step_that_there_is_not(
    step: str, message: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["show", file, "--step", step])
    except SystemExit as stop:
        code = int(str(stop.code))
    assert code == 2
    assert message in capsys.readouterr().err


def test_a_training_is_not_made_of_whole_runs(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ([], ["--gpu", "A100-SXM"]):
        assert main(["show", file, "--step", "2..4", "--until", "100", *options]) == 2
        assert "Choose one: --step N" in capsys.readouterr().err


def test_several_steps_are_compared_by_their_time(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", file, "--step", "2..4", "--gpu", "A100-SXM"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "A100-SXM" in text
    assert "no cost of steps: this is steps 2 to 4" in text


def test_more_steps_are_not_asked_of_a_script_that_has_run_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six steps that all differ: four would say less."""
    source = EXPERIMENTS.partition("train(16, 1)")[0].replace("ones(4, width", "ones(4 + _, width")
    source += "train(32, 9)"
    path = str(tmp_path / "run.tally")
    traced(lambda: exec(source, {}), steps=6).save(path)
    assert main(["show", path]) == 0
    assert "Trace more" not in capsys.readouterr().out
    assert main(["show", path, "--step", "7"]) == 2
    assert "Trace more: `tally run --steps 7`" in capsys.readouterr().err
    traced(lambda: exec(source, {}), steps=20).save(path)
    assert main(["show", path, "--step", "12"]) == 2
    assert "the run completed steps 1 to 9.\n" in capsys.readouterr().err


def test_steps_that_differ_are_said_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = EXPERIMENTS.replace("train(16, 1)", "").replace("ones(4, width", "ones(4 + _, width")
    trace: Trace = traced(lambda: exec(source, {}), steps=2)
    trace.save(tmp_path / "run.tally")
    assert main(["show", str(tmp_path / "run.tally")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "per step 2 (unlike those before it)" in text
    assert "steady" not in text
    assert "Step 2 is unlike 1: step 1 has 20 % fewer FLOPs" in text
    assert "(forward with other shapes, backward with other shapes)" in text
    assert "--steps 4" in text

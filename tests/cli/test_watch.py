"""`tally watch`: what it prints, in a pipe and on a terminal."""

import io
import json
import time
from pathlib import Path

import pytest

from tests.profiles.kineto_files import linear_step
from tests.report.test_text import realistic
from torchtally.cli import main
from torchtally.progress import CLEAR_LINE

Capture = pytest.CaptureFixture[str]

LOG = """\
iter 0: loss 10.98, time 9000.00ms, mfu -100.00%
iter 10: loss 9.00, time 100.00ms, mfu 30.00%
iter 20: loss 8.00, time 200.00ms, mfu 30.00%
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "train.log").write_text(LOG)
    return tmp_path


def test_once_prints_each_step_and_the_summary(capsys: Capture) -> None:
    assert main(["watch", "train.log", "--once"]) == 0
    assert capsys.readouterr().out == (
        "step 0: 9.00 s\n"
        "step 10: 100.0 ms, MFU 30.0 %\n"
        "step 20: 200.0 ms, MFU 30.0 %\n"
        "train.log: 3 observations, steps 0 to 20\n"
        "  Step time 150.0 ms; the median of 100.0 ms to 200.0 ms.\n"
        "  MFU 30.0 % as the training reports.\n"
    )


def test_json_has_the_prediction_first_and_the_summary_last(capsys: Capture) -> None:
    realistic().save("run.tally")
    assert main(["watch", "train.log", "--once", "--json", "--against", "run.tally"]) == 0
    first, *steps, last = map(json.loads, capsys.readouterr().out.splitlines())
    step_s = first["predicted"]["step_s"]
    assert [step["step"] for step in steps] == [0, 10, 20]
    assert steps[1]["deviation"] == pytest.approx(0.1 / step_s - 1)
    assert (last["kind"], last["step_s"]) == ("summary", pytest.approx(0.15))
    assert last["predicted"] == first["predicted"]


def test_a_folder_has_headings(folder: Path, capsys: Capture) -> None:
    linear_step().write(folder / "w.1.pt.trace.json")
    assert main(["watch", ".", "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "==> train.log <=="
    assert lines[4:6] == ["==> w.1.pt.trace.json <==",
                          "profiled step: 680.0 us, MFU 61.3 %, 10.3 % idle"]  # fmt: skip


def test_a_terminal_has_one_line_until_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr(time, "sleep", interrupted)
    assert main(["watch", "train.log"]) == 130
    drawn, _, summary = screen.getvalue().rpartition(CLEAR_LINE)
    assert drawn.split(CLEAR_LINE)[1:] == [
        "step 0: 9.00 s",
        "step 10: 100.0 ms, MFU 30.0 %",
        "step 20: 200.0 ms, MFU 30.0 %",
    ]
    assert summary.startswith("train.log: 3 observations, steps 0 to 20\n")


def test_nothing_to_watch_is_an_error(capsys: Capture) -> None:
    assert main(["watch", "none.log", "--once"]) == 2
    assert capsys.readouterr().err == "tally: error: none.log: no such log or folder.\n"

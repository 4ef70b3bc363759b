"""An error of tally's own is told as such, and decides neither an exit code nor the rest."""

from pathlib import Path

import pytest

from tests.cli.run_tally import tally_run
from tests.cli.test_gates import SCRIPT
from torchtally.cli.own_errors import told
from torchtally.errors import UsageError
from torchtally.gates import GATE_EXIT

pytestmark = pytest.mark.one_case_in(2)

BREAK = """
def broken(*args, **options):
    raise KeyError("ours")
import {module}
{module}.{name} = broken
"""
PEAK = ("--assert", "peak < 1GiB")
OWN = "tally: error of tally's own, not of the script: "


MISTAKE = """
import torchtally, torchtally.tracer.recorder as recorder
text = "lambda self, *args: self.nothing_of_this_name"
recorder.Recorder.operator_ran = eval(compile(text, torchtally.__file__, "eval"))
"""


def broken(place: str) -> str:
    module, _, name = place.partition(":")
    return BREAK.format(module=module, name=name)


@pytest.mark.parametrize(
    ("place", "lost", "kept", "decided"),
    [
        ("torchtally.views.summary:diagnose", "the report", "Memory at the peak, by cat", True),
        ("torchtally.ledger:account", "the account", "", False),
        ("torchtally.tracer.session:Recording.trace", "the trace", "", False),
        ("torchtally.isolation.run:Isolation.tidy", "the folder of the run's files", "fits", True),
    ],
)
def test_a_script_that_finished_is_not_failed_by_an_error_of_ours(
    place: str, lost: str, kept: str, decided: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = (*PEAK, "--no-advice", "train.py")
    done = tally_run(*words, cwd=tmp_path, setup=broken(place))
    assert f"{OWN}{lost} could not be made (KeyError: 'ours' at " in done.stderr
    assert "Traceback" not in done.stderr
    assert kept in done.stderr
    assert ("peak < 1GiB: holds" in done.stderr) is decided
    assert done.code == (0 if decided else GATE_EXIT)


def test_without_a_limit_its_exit_code_stays(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = tally_run("train.py", cwd=tmp_path, setup=broken("torchtally.ledger:account"))
    assert (done.code, OWN in done.stderr) == (0, True)


def test_an_error_of_ours_within_the_script_says_whose_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = tally_run("train.py", cwd=tmp_path, setup=MISTAKE)
    assert done.code == 1
    assert "nothing_of_this_name" in done.stderr
    assert "this is an error of tally's own, not of the script" in done.stderr


def test_a_mistake_of_the_users_is_not_ours(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError), told("the report", None):
        raise UsageError("theirs")
    assert capsys.readouterr().err == ""

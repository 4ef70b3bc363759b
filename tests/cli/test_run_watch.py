"""`tally run --watch`: on a terminal, with a script that prints, and where there is none."""

import os
from pathlib import Path

import pytest

from tests.cli.run_tally import tally_run
from tests.cli.test_view import in_terminal
from tests.warm import TALLY, warm

SCRIPT = """\
import time, torch
weight = torch.nn.Parameter(torch.ones(512, 512, device="cuda"))
optimizer = torch.optim.SGD([weight])
for step in range(3):
    (weight @ weight).sum().backward()
    optimizer.step()
    print(f"script says {step}")
    until = time.thread_time() + 0.3  # so that something is drawn of each step
    while time.thread_time() < until:
        pass
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def words(*options: str) -> tuple[str, ...]:
    return ("run", "train.py", "--gpu", "H100-SXM", "--steps", "all", *options)


def test_on_a_terminal_it_draws_then_reports_then_shows_the_run(script: Path) -> None:
    code, drawn = in_terminal(TALLY, b"q", arguments=words("--watch"), python=warm)
    text = drawn.decode()
    assert code == 0, text
    live, _, rest = text.partition("fits H100-SXM")
    assert "of kernels predicted" in live
    assert "(weight @ weight).sum().backward()" in live
    assert rest.index("\x1b[?1049h") > rest.index("By phase")
    for step in range(3):
        assert f"script says {step}" in live  # a drawing may come before the end of its line


def test_the_output_of_the_script_is_its_own(script: Path) -> None:
    redirect = f"import os; os.dup2(os.open('out.txt', {os.O_WRONLY | os.O_CREAT}), 1)\n"
    code, drawn = in_terminal(redirect + TALLY, arguments=words("--watch"), python=warm)
    assert code == 0, drawn
    assert (script / "out.txt").read_text() == "".join(f"script says {n}\n" for n in range(3))
    assert b"of kernels predicted" in drawn
    assert b"no `tally view run.tally` here: tally view needs a terminal" in drawn
    assert b"\x1b[?1049h" not in drawn


@pytest.mark.thorough
def test_elsewhere_it_says_so_once_and_prints_lines_of_progress(script: Path) -> None:
    run = tally_run("--steps", "all", "--watch", "train.py", cwd=script)
    assert run.code == 0
    assert run.stderr.count("--watch needs a terminal on stderr") == 1
    assert "tally: step 3, " in run.stderr
    assert "\x1b" not in run.stderr
    assert run.stdout == "".join(f"script says {n}\n" for n in range(3))


def test_quiet_and_watch_exclude_each_other(script: Path) -> None:
    run = tally_run("--quiet", "--watch", "train.py", cwd=script)
    assert run.code == 2
    assert "--watch and --quiet cannot be combined" in run.stderr


@pytest.mark.thorough
def test_a_question_of_the_script_stays_on_the_screen(script: Path) -> None:
    """`input` writes past `sys.stdout`; nothing is drawn over it while it waits."""
    (script / "train.py").write_text(f"{SCRIPT}print('I am', input('name? '))\n")
    code, drawn = in_terminal(
        TALLY, b"Ada\n", b"q", arguments=words("--watch"), marker=b"name? ", python=warm
    )
    assert code == 0, drawn
    asked = drawn[drawn.rindex(b"name? ") :]
    assert b"I am Ada" in asked
    assert b"of kernels predicted" not in asked[: asked.index(b"Ada")]

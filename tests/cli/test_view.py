"""`tally view` as a user meets it: in a terminal, without one, without textual, in a browser."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.cli.run_tally import TIMEOUT_S, environment
from tests.report.test_text import realistic
from tests.warm import TALLY, cold, warm
from torchtally.cli import main


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    realistic().save(tmp_path / "run.tally")


def in_terminal(
    program: str,
    *keys: bytes,
    arguments: Sequence[str] = ("view", "run.tally"),
    marker: bytes = b"search",
    python: Callable[..., list[str]] = cold,
) -> tuple[int, bytes]:
    """(exit code, all that was drawn) of a process on a terminal of its own; `keys` are pressed
    once the marker is drawn (that of a page's foot), each when the one before was answered.
    """
    words = python(program, *arguments)
    process, terminal = pty.fork()
    if not process:
        os.environ["TERM"] = "xterm-256color"
        os.execv(words[0], words)
    drawn, waiting = b"", [*keys]
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        is_quiet = not select.select([terminal], [], [], 0.5)[0]
        if is_quiet:
            if waiting and marker in drawn:
                os.write(terminal, waiting.pop(0))
            continue
        try:
            drawn += os.read(terminal, 1 << 16)
        except OSError:  # the process has closed its end
            break
    else:
        os.kill(process, signal.SIGKILL)  # it waits for a key that it was not given
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), drawn


def test_it_draws_on_a_terminal_and_gives_it_back() -> None:
    code, drawn = in_terminal(TALLY, b"2", b"q")
    assert code == 0, drawn
    assert b"Overview" in drawn
    assert b"self.lm_head(x)" in drawn
    assert drawn.rindex(b"\x1b[?1049l") > drawn.rindex(b"\x1b[?1049h")  # the other screen is back


@pytest.mark.thorough
def test_ctrl_c_ends_it() -> None:
    code, _ = in_terminal(TALLY, b"\x03")
    assert code == 0


def test_without_textual_it_says_what_to_install() -> None:
    program = "import sys, importlib.util as util; find = util.find_spec\n"
    program += "util.find_spec = lambda name: None if name == 'textual' else find(name)\n"
    code, drawn = in_terminal(program + TALLY)
    assert code == 2
    assert "pip install 'torchtally[view]'" in " ".join(drawn.decode().split())


def test_without_a_terminal_it_names_what_works() -> None:
    done = subprocess.run(
        warm(TALLY, "view", "run.tally"), capture_output=True, text=True, env=environment(),
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert "needs a terminal" in done.stderr
    assert "`tally show run.tally`" in done.stderr


def test_a_browser_is_given_the_page(tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    done = subprocess.run(
        warm(TALLY, "view", "run.tally", "--browser", "--gpu", "A100"),
        capture_output=True,
        text=True,
        env=environment() | {"BROWSER": f"{browser} %s", "TMPDIR": str(tmp_path)},
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = Path(done.stdout.strip())
    assert page.stat().st_mode & 0o077 == 0
    assert (tmp_path / "opened").read_text().strip() == page.as_uri()
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert done.stderr == (
        "tally: A100: taken as A100-SXM (80 GB); others: A100-PCIe-40GB, A100-PCIe, A100-SXM-40GB\n"
    )


def test_a_broken_trace_is_an_error_before_anything_is_drawn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "run.tally").write_bytes(b"nothing")
    assert main(["view", "run.tally", "--browser"]) == 2
    assert "run.tally: not a trace" in capsys.readouterr().err


def test_help_loads_neither_torch_nor_textual() -> None:
    program = (
        "import sys\nfrom torchtally.cli import main\n"
        "try:\n    main(['view', '--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'textual'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "tally view run.tally --browser" in done.stdout
    assert done.stdout.endswith("[]\n")

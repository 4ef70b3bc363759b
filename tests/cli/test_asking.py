"""`tally plan` without arguments, on a real terminal."""

import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.warm import TALLY, warm


class Terminal:
    """`tally plan` with a pseudo-terminal for all of its streams."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.end, inner = pty.openpty()
        self.process = subprocess.Popen(
            warm(TALLY, "plan", *words), cwd=folder, stdin=inner, stdout=inner, stderr=inner,
            env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}, start_new_session=True,
        )  # fmt: skip
        os.close(inner)
        self.text = ""

    def until(self, expected: str, timeout_s: float = 60.0) -> str:
        """What is shown up to the end of this text."""
        deadline = time.monotonic() + timeout_s
        while expected not in self.text:
            assert time.monotonic() < deadline, self.text
            if select.select([self.end], [], [], 0.1)[0]:
                self.text += os.read(self.end, 1 << 16).decode().replace("\r\n", "\n")
        before, _, self.text = self.text.partition(expected)
        return before + expected

    def say(self, line: str) -> None:
        os.write(self.end, f"{line}\n".encode())


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    started = Terminal(tmp_path)
    yield started
    started.process.kill()
    started.process.wait()
    os.close(started.end)


def test_it_asks_and_answers_and_takes_changes(terminal: Terminal) -> None:
    terminal.until("number of parameters [70B]: ")
    terminal.say("lama-3-8b")
    assert "Did you mean" in terminal.until("number of parameters [70B]: ")
    terminal.say("")
    terminal.until("only its size and FLOPs: ")
    terminal.say("1024xH100-SXM")
    terminal.until("how fast is a step?: ")
    terminal.say("15T")
    terminal.until("best layout: ")
    terminal.say("0.5")
    answer = terminal.until("Enter quits: ")
    assert "\ntally plan 70B --gpus 1024xH100-SXM --tokens 15T --mfu 0.5\n" in answer
    assert "143.94 days to train 70.00 B parameters" in answer
    terminal.say("--recipe nope")
    assert "'nope' is unknown" in terminal.until("Enter quits: ")
    terminal.say("--tokens 1.5T")
    assert "\n14.39 days to train" in terminal.until("Enter quits: ")
    terminal.say("7B")
    assert "tally plan 7B --gpus 1024xH100-SXM" in terminal.until("Enter quits: ")
    terminal.say("")
    assert terminal.process.wait(30) == 0


def test_without_chips_nothing_more_is_asked(terminal: Terminal) -> None:
    terminal.until("[70B]: ")
    terminal.say("llama-3-8b")
    terminal.until("FLOPs: ")
    terminal.say("")
    assert "\ntally plan llama-3-8b\n" in terminal.until("Enter quits: ")
    os.write(terminal.end, b"\x04")  # Ctrl-D
    assert terminal.process.wait(30) == 130


def test_a_pipe_is_asked_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        warm(TALLY, "plan"), cwd=tmp_path, input="70B\n", capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Missing model:" in done.stderr


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        ("llama-3-8b --gpus 64xB200 --tokens 1T --recipe fp8", '"chosen":"Llama 3 8B"'),
        ("--layers 4 --width 64 --heads 4 --vocabulary 1000 --gpus 8xL4", '"value":325184'),
        ("", '"chosen":"by its size alone"'),
    ],
)
def test_the_napkin_begins_with_what_is_given(tmp_path: Path, words: str, begins: str) -> None:
    import base64
    import gzip
    import re

    done = subprocess.run(
        warm(TALLY, "plan", *words.split(), "--page", "napkin.html"), cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "napkin.html").read_text()
    packed = re.search(r'<script[^>]*id="data"[^>]*>([^<]*)<', page)
    assert packed is not None
    assert begins in gzip.decompress(base64.b64decode(packed[1])).decode()

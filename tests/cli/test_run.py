"""The contract with the script: `tally run script.py` is `python script.py`, plus a report."""

import hashlib
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.run_tally import (
    GPU,
    SCRIPTS,
    SHORT_GRACE,
    TIMEOUT_S,
    Run,
    command,
    ending,
    environment,
    finish,
    is_verdict,
    start,
    tally_run,
)
from torchtally.cli import main

TRACEBACK = """\
Traceback (most recent call last):
  File "{script}", line {first}, in by_exception
    torch.ones(2, device="cuda") @ torch.ones(3, device="cuda")
"""


# As under python ---------------------------------------------------------------------------------


def test_stdout_is_that_of_python_to_the_last_byte(tmp_path: Path) -> None:
    """argv, path, `__main__`, pickling, stdin, a lot of output; also from a strange place."""
    home = tmp_path / "späce & ünicode"
    home.mkdir()
    (tmp_path / "link.py").symlink_to(home / "träin.py")
    shutil.copy(SCRIPTS / "facts.py", home / "träin.py")
    arguments = ["--device=cpu", "wörd", "--", "--quiet"]
    stdin = "a line\nand no end"
    theirs = subprocess.run(
        [sys.executable, "../link.py", *arguments],
        cwd=home, input=stdin.encode(), capture_output=True, env=environment(), timeout=TIMEOUT_S,
    )  # fmt: skip
    ours = subprocess.run(
        command("-o", "out.tally", "../link.py", "--device=cpu", "--json", "out.json", "wörd",
                "--quiet", "--", "--", "--quiet"),
        cwd=home, input=stdin.encode(), capture_output=True, env=environment(), timeout=TIMEOUT_S,
    )  # fmt: skip
    assert theirs.stdout[:2000] == ours.stdout[:2000]
    assert hashlib.sha256(theirs.stdout).digest() == hashlib.sha256(ours.stdout).digest()
    assert theirs.stderr == ours.stderr == b"INFO:root:done\n"
    assert (theirs.returncode, ours.returncode) == (0, 0)
    assert (home / "out.tally").exists()  # the script went elsewhere
    assert (home / "out.json").exists()

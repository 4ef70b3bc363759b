"""Commands that start in tens of milliseconds: Python processes forked from one with torch loaded.

For tests of what a command does. Tests of what starting it loads or reads need a fresh `python -c`.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

CLIENT = Path(__file__).with_name("warm_client.py")
INTERPRETERS = ("PYTHONUNBUFFERED", "PYTHONSAFEPATH")
"""Variables that an interpreter reads when it starts: the commands here start without them."""
SERVER = Path(__file__).with_name("warm_server.py")


@cache
def _server() -> tuple[str, "subprocess.Popen[str]"]:
    """(its socket, its process): one for each process that runs tests, ended with it."""
    place = str(Path(tempfile.mkdtemp(prefix="tally-warm-")) / "socket")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER.read_text(), place],
        env={name: value for name, value in os.environ.items() if name not in INTERPRETERS},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return place, process


def warm(program: str, *arguments: str) -> list[str]:
    """A command like `python -c program arguments...`."""
    place, _ = _server()
    return [sys.executable, "-IS", str(CLIENT), place, program, *arguments]


TALLY = "import sys; from torchtally.cli import main; sys.exit(main())"
PYTHON = """\
import os, runpy, sys
sys.executable, way, *words = sys.argv[1:]
if way == "-c":
    sys.argv = [way, *words[1:]]
    exec(compile(words[0], "<string>", "exec"), globals())
elif way == "-m":
    sys.argv = words
    if not hasattr(sys.modules.get(words[0]), "__path__"):
        sys.modules.pop(words[0], None)  # runpy warns of a module that is loaded already
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)
else:
    sys.argv = [way, *words]
    sys.path[0] = os.path.dirname(os.path.abspath(way))
    runpy.run_path(way, run_name="__main__")
"""
"""Like `python -c CODE ...`, `python -m MODULE ...` and `python FILE ...`, after its own path."""


@cache
def commands() -> Path:
    """A folder for the PATH of a shell: a warm `tally` and `python`, whose children are warm."""
    folder = Path(tempfile.mkdtemp(prefix="tally-commands-"))
    python = folder / "python"
    tally = warm(f"import sys; sys.executable = {str(python)!r}\n{TALLY}")
    for command, words in ((folder / "tally", tally), (python, warm(PYTHON, str(python)))):
        command.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        command.chmod(0o755)
    return folder


def warm_children() -> str:
    """What a program begins with, so that the Pythons that it starts are warm, too."""
    return f"import sys; sys.executable = {str(commands() / 'python')!r}\n"


def cold(program: str, *arguments: str) -> list[str]:
    """The same by an interpreter that has loaded nothing."""
    return [sys.executable, "-c", program, *arguments]

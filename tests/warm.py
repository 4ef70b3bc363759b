"""Commands that start in tens of milliseconds: Python processes forked from one with torch loaded.

For tests of what a command does. Tests of what starting it loads or reads need a fresh `python -c`.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest import mock

CLIENT = Path(__file__).with_name("warm_client.py")
INTERPRETERS = ("PYTHONUNBUFFERED", "PYTHONSAFEPATH")
"""Variables that an interpreter reads when it starts: the commands here start without them."""
SERVER = Path(__file__).with_name("warm_server.py")


FOLDER = "TALLY_TESTS_WARM"
"""The variable with the folder of the server that is shared by all processes that run tests."""
START_S = 300
TALLY = "import sys; from torchtally.cli import main; sys.exit(main())"
PYTHON = """\
import os, runpy, sys
way, *words = sys.argv[1:]
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
"""Like `python -c CODE ...`, `python -m MODULE ...` and `python FILE ...`."""
_started: list["subprocess.Popen[bytes]"] = []


def start() -> Path:
    """Start the server. It ends with this process, and serves every one that is told its folder."""
    folder = Path(tempfile.mkdtemp(prefix="tally-warm-"))
    _started.append(
        subprocess.Popen(
            [sys.executable, "-c", SERVER.read_text(), folder / "socket", folder / "python"],
            env={name: value for name, value in os.environ.items() if name not in INTERPRETERS},
            stdin=subprocess.PIPE,
        )
    )
    client = shlex.join((sys.executable, "-IS", str(CLIENT), str(folder / "socket")))
    tally, python = f"exec {client} {shlex.quote(TALLY)}", f"exec {client} {shlex.quote(PYTHON)}"
    cases = (
        '[ "$1" != -u ] || shift  # as xdist starts its workers, which buffer nothing themselves\n'
        f'case $1 in -c | -m | [!-]*) {python} "$@" ;; *) exec {sys.executable} "$@" ;; esac'
    )
    for name, line in (("tally", f'{tally} "$@"'), ("python", cases)):
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    os.environ[FOLDER] = str(folder)
    return folder


@cache
def commands() -> Path:
    """A folder for the PATH of a shell: a warm `tally` and `python`; a cold one for options.

    The server's socket is in it, and listens.
    """
    folder = Path(os.environ[FOLDER]) if FOLDER in os.environ else start()
    end = time.monotonic() + START_S
    while not (folder / "socket").exists():
        assert all(process.poll() is None for process in _started), "the warm Python has ended"
        assert time.monotonic() < end, f"no warm Python after {START_S} s"
        time.sleep(0.02)
    return folder


def warm(program: str, *arguments: str) -> list[str]:
    """A command like `python -c program arguments...`, whose own Pythons are warm, too."""
    folder = commands()
    return [sys.executable, "-IS", str(CLIENT), str(folder / "socket"), program, *arguments]


@contextmanager
def warm_python() -> Iterator[None]:
    """What is started here by `sys.executable` is forked from a Python with torch loaded."""
    python = str(commands() / "python")
    with mock.patch.object(sys, "executable", python):
        yield


def cold(program: str, *arguments: str) -> list[str]:
    """The same by an interpreter that has loaded nothing."""
    return [sys.executable, "-c", program, *arguments]

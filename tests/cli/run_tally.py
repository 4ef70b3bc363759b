"""`tally run` as a process of its own, for the tests that need a real one."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.warm import cold, warm
from torchtally.trace import Trace

SCRIPTS = Path(__file__).parents[1] / "scripts"
TALLY = """\
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever runs the tests may ignore it
from torchtally.cli import main
"""
END = "sys.exit(main())"
SHORT_GRACE = "import torchtally.tracer.stopper as stopper; stopper.GRACE_S = 0.2\n"
GPU = "H100-SXM"
TIMEOUT_S = 120
PROGRESS = ("tally: step ", "tally: before step ", "tally: PyTorch ")


@dataclass(frozen=True)
class Run:
    """A finished `tally run`."""

    code: int
    stdout: str
    stderr: str
    file: Path

    @property
    def trace(self) -> Trace:
        return Trace.load(self.file)

    @property
    def said_by_script(self) -> str:
        """stderr before the report, less what says how far the run is."""
        lines = self.stderr.splitlines(keepends=True)
        before = lines[: next((at for at, line in enumerate(lines) if is_verdict(line)), None)]
        return "".join(line for line in before if not line.startswith(PROGRESS))


def is_verdict(line: str) -> bool:
    return line.startswith(("fits H100-SXM", "nothing was allocated on the H100-SXM"))


def environment() -> dict[str, str]:
    own = ("COLUMNS", "NO_COLOR", "PYTHONUNBUFFERED", "PYTHONSAFEPATH")
    return {k: v for k, v in os.environ.items() if k not in own} | {"OMP_NUM_THREADS": "1"}


def command(*arguments: str, setup: str = "", is_warm: bool = True, gpu: str = GPU) -> list[str]:
    """A command for `subprocess`. A warm one has the streams of a pipe, whatever they are."""
    python = warm if is_warm else cold
    return python(TALLY + setup + END, "run", "--gpu", gpu, *arguments)


def start(*arguments: str, cwd: Path, setup: str = "", gpu: str = GPU) -> "subprocess.Popen[str]":
    """A process to talk to; `finish` waits for its end."""
    return subprocess.Popen(
        command(*arguments, setup=setup, gpu=gpu),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment(),
    )


def finish(process: "subprocess.Popen[str]", cwd: Path) -> Run:
    try:
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    return Run(process.returncode, stdout, stderr, cwd / "run.tally")


def tally_run(*arguments: str, cwd: Path, setup: str = "", gpu: str = GPU) -> Run:
    """To its end, in `cwd`, where the trace goes, too."""
    return finish(start(*arguments, cwd=cwd, setup=setup, gpu=gpu), cwd)


def ending(name: str, *options: str, cwd: Path, setup: str = "") -> Run:
    """Of the script that ends in every way, by that one."""
    return tally_run(*options, str(SCRIPTS / "endings.py"), name, cwd=cwd, setup=setup)

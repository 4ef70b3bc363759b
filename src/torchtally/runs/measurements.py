"""Measured runs of a script, each in a process of its own that does not outlive us. No torch."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchtally.runs.measure.document import Measurement, ended

GRACE_S = 3.0
"""Until a process that was told to end is killed."""
LINES = 12
"""Of a script's output, kept for the message."""


@dataclass(frozen=True, slots=True)
class Command:
    """A script, its arguments, and after how many training steps it is stopped."""

    script: str
    arguments: tuple[str, ...]
    is_module: bool
    steps: int


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as torch sees it; one without a name where it sees none."""

    name: str
    total_memory_bytes: int
    remark: str = ""
    """What torch had to say about it."""


class Runs:
    """A context in which processes run, one at a time. On its way out, however, they are ended.

    Each has a session of its own, so that Ctrl-C reaches us alone, and a pipe to us: where we end
    without a word, it ends, too, with all it has started. None has stdin: two cannot read it. All
    see one GPU, as the simulated machine has one.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tally-audit-")
        self._lifeline, self._our_end = os.pipe()
        self._process: subprocess.Popen[bytes] | None = None
        self._terminated: Any = None

    def __enter__(self) -> "Runs":
        self._terminated = signal.signal(signal.SIGTERM, _terminate)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            _signal_group(self._process, signal.SIGTERM)
            try:
                self._process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                pass
            finally:
                _signal_group(self._process, signal.SIGKILL)
                self._process.wait()
        os.close(self._our_end)
        os.close(self._lifeline)
        signal.signal(signal.SIGTERM, self._terminated)
        self._folder.cleanup()

    def device(self) -> Device:
        """The GPU that is there."""
        code, answer, output = self._run("device", {"script": None}, shows_output=False)
        if answer is None:
            return Device("", 0, f"(it ended with {_how(code)})\n{output}")
        return Device(answer["device"], answer["total_memory_bytes"], output)

    def measure(self, command: Command, gpu: str | None) -> Measurement:
        """Run the script: on the GPU, shown on stderr, or on a simulated one, not shown."""
        asked = {
            "script": command.script,
            "arguments": command.arguments,
            "is_module": command.is_module,
            "steps": command.steps,
            "gpu": gpu,
        }
        name = "real" if gpu is None else "simulated"
        code, answer, output = self._run(name, asked, shows_output=gpu is None)
        if answer is None:
            message = f"its process ended with {_how(code)}, without a word"
            return ended("killed", message, output)
        return replace(Measurement.from_json(answer), output=output)

    def _run(
        self, name: str, asked: dict[str, Any], *, shows_output: bool
    ) -> tuple[int, Any | None, str]:
        """(exit code, answer if there is one, last lines of the output that was not shown)."""
        folder = Path(self._folder.name)
        answer, said = folder / f"{name}.json", folder / f"{name}.txt"
        asked |= {"answer": str(answer), "lifeline": self._lifeline}
        with open(said, "wb") as output:
            target = _stderr() if shows_output else output
            self._process = subprocess.Popen(
                [sys.executable, "-m", "torchtally.runs.measure", json.dumps(asked)],
                stdin=subprocess.DEVNULL,
                stdout=target,
                stderr=target,
                pass_fds=[self._lifeline],
                start_new_session=True,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": _first_device()},
            )
            code = self._process.wait()
        _signal_group(self._process, signal.SIGKILL)  # what it has left behind
        self._process = None
        try:
            found = json.loads(answer.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = None
        return code, found, _last_lines(said)


def _first_device() -> str:
    """The value of CUDA_VISIBLE_DEVICES that leaves the first of the devices there are."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]


def _stderr() -> int:
    try:
        os.fstat(2)
    except OSError:  # closed by whoever called us
        return subprocess.DEVNULL
    return 2


def _terminate(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _signal_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _last_lines(path: Path) -> str:
    with open(path, "rb") as file:
        file.seek(max(os.path.getsize(path) - 10_000, 0))
        text = file.read().decode("utf-8", "replace")
    return "\n".join(text.replace("\r", "\n").splitlines()[-LINES:])

"""Runs of a script in processes of their own, several at a time, none of which outlives us."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from torchtally.runs.allocations import Allocations
from torchtally.trace import Call

Capability = tuple[int, int]
NO_ALLOCATIONS = Allocations((), ())
GRACE_S = 1.0
"""Until a process that was told to end is killed."""
POLL_S = 0.05
LINES = 12
"""Of a failed script's output, kept for the message."""


@dataclass(frozen=True, slots=True)
class Command:
    """A script with the arguments of one run, and how it is to be run."""

    script: str
    arguments: tuple[str, ...]
    is_module: bool
    gpu: str
    steps: int
    max_seconds: float | None = None
    nonzero_fraction: float = 1.0
    folds: bool = True
    what_ifs: tuple[str, ...] = ()
    """Changes to try, as `tally run --what-if` spells them."""
    allocator_settings: str | None = None
    """For PYTORCH_CUDA_ALLOC_CONF; None leaves it as it is."""
    capabilities: tuple[Capability, ...] = ()
    """Of other chips that the run might speak for."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a run fits into one capacity. Peaks of one that does not are of endless memory."""

    fits: bool
    peak_allocated_bytes: int
    peak_reserved_bytes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run."""

    ending: str
    """As `record.Ending.kind`; "killed" for a process that ended without an answer."""
    message: str
    steps: int
    peak_allocated_bytes: int
    """With no end of memory, like the other one."""
    peak_reserved_bytes: int
    folded: int
    """Forward passes that were taken to be like those before them."""
    verdicts: tuple[Verdict, ...]
    """One for each capacity, in their order."""
    allocations: Allocations
    output: str
    """The last lines of what the script printed."""
    wall_s: float
    alike: frozenset[Capability] = frozenset()
    """Compute capabilities on which the same operators would have run."""
    questions: tuple[str, ...] = ()
    """What the script asked the chip that not all chips answer alike."""

    @property
    def failure(self) -> str:
        """Why the script failed, other than by memory; "" where it did not."""
        if self.ending in ("steps", "exit") and not self.message.startswith("sys.exit("):
            return ""
        return self.message or self.ending


@dataclass(slots=True)
class _Running:
    key: Any
    process: "subprocess.Popen[bytes]"
    folder: Path
    started_s: float


class Runs:
    """A context in which runs go on. On its way out, however, all of them are ended.

    Each has a session of its own, so that Ctrl-C reaches us alone, and a pipe to us: where we end
    without a word, they end, too, with all they have started.
    """

    def __init__(self) -> None:
        self._running: list[_Running] = []
        self._folder = tempfile.TemporaryDirectory(prefix="tally-fit-")
        self._lifeline, self._our_end = os.pipe()
        self._count = 0
        self._terminated: Any = None

    def __enter__(self) -> "Runs":
        self._terminated = signal.signal(signal.SIGTERM, _terminate)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for each in self._running:
            _signal_group(each.process, signal.SIGTERM)
        deadline_s = time.monotonic() + GRACE_S
        for each in self._running:
            with suppress(subprocess.TimeoutExpired):
                each.process.wait(max(deadline_s - time.monotonic(), 0.01))
            _signal_group(each.process, signal.SIGKILL)  # what it has started, too
            each.process.wait()
        os.close(self._our_end)
        os.close(self._lifeline)
        signal.signal(signal.SIGTERM, self._terminated)
        self._folder.cleanup()

    @property
    def running(self) -> tuple[Any, ...]:
        return tuple(running.key for running in self._running)

    def start(self, key: Any, command: Command, capacities: Sequence[tuple[int, int]]) -> None:
        """Begin a run, judged for each (capacity, total memory of the device) in bytes."""
        self._count += 1
        folder = Path(self._folder.name) / str(self._count)
        folder.mkdir()
        asked = {
            "script": command.script,
            "arguments": command.arguments,
            "is_module": command.is_module,
            "gpu": command.gpu,
            "steps": command.steps,
            "max_seconds": command.max_seconds,
            "nonzero_fraction": command.nonzero_fraction,
            "folds": command.folds,
            "what_ifs": command.what_ifs,
            "capabilities": command.capabilities,
            "capacities": list(capacities),
            "answer": str(folder / "answer.json"),
            "lifeline": self._lifeline,
        }
        environment = dict(os.environ)
        if command.allocator_settings is not None:
            environment["PYTORCH_CUDA_ALLOC_CONF"] = command.allocator_settings
            environment.pop("PYTORCH_ALLOC_CONF", None)
        with open(folder / "output", "wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "torchtally.runs.probe", json.dumps(asked)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[self._lifeline],
                start_new_session=True,
            )
        self._running.append(_Running(key, process, folder, time.monotonic()))

    def finished(self, wait_s: float) -> tuple[Any, Outcome] | None:
        """A run that has ended, by its key; None when none does in so many seconds."""
        deadline_s = time.monotonic() + wait_s
        while True:
            for each in self._running:
                if each.process.poll() is not None:
                    self._running.remove(each)
                    _signal_group(each.process, signal.SIGKILL)  # what it has left behind
                    return each.key, _outcome(each)
            if time.monotonic() >= deadline_s:
                return None
            time.sleep(POLL_S)


def _terminate(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _signal_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _outcome(run: _Running) -> Outcome:
    wall_s = time.monotonic() - run.started_s
    output = _last_lines(run.folder / "output")
    try:
        found = json.loads((run.folder / "answer.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        code = run.process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return Outcome(
            "killed", f"its process {how}", 0, 0, 0, 0, (), NO_ALLOCATIONS, output, wall_s
        )
    return Outcome(
        ending=found["ending"][0],
        message=found["ending"][1],
        steps=found["steps"],
        peak_allocated_bytes=found["peak_allocated_bytes"],
        peak_reserved_bytes=found["peak_reserved_bytes"],
        folded=found["folded"],
        verdicts=tuple(Verdict(**verdict) for verdict in found["verdicts"]),
        allocations=Allocations(
            found["events"],
            found["sizes"],
            tuple(found["blas"]),
            msgspec.convert(found["calls"], tuple[Call, ...]),
            uses_streams=found["uses_streams"],
        ),
        output=output,
        wall_s=wall_s,
        alike=frozenset((major, minor) for major, minor in found["alike"]),
        questions=tuple(found["questions"]),
    )


def _last_lines(path: Path) -> str:
    with open(path, "rb") as file:
        file.seek(max(os.path.getsize(path) - 10_000, 0))
        text = file.read().decode("utf-8", "replace")
    return "\n".join(text.replace("\r", "\n").splitlines()[-LINES:])

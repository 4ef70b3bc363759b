"""Supervised child processes, cold or warm: start, signals, end, answer, last lines of output.

Every child has a session of its own, so that Ctrl-C reaches us alone, and a lifeline: the read end
of a pipe whose write end only we hold. When we end, however we end, the pipe closes and the child
kills its process group. None has stdin: two processes cannot read it.

A *cold* child is a new interpreter. A *warm* one is forked from a server that has imported torch
and the program's modules, which saves about two seconds of CPU time. `server` says how the two
differ; a child whose environment differs in what is read at import time starts cold.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from torchtally.runs.protocol import ANSWER, OUTPUT, REQUEST, Request, read, write
from torchtally.runs.server import (
    LATE_VARIABLES,
    Fork,
    Server,
    ServerLostError,
    can_fork,
    our_stderr,
)

POLL_S = 0.05
LINES = 12
"""Of a failed script's output, kept for the message."""
TAIL_BYTES = 10_000
LOST = -int(signal.SIGKILL)
"""Exit code of a child whose server was killed."""

T = TypeVar("T")


@dataclass(slots=True)
class Child:
    """A child that runs."""

    key: Any
    pid: int
    folder: Path
    started_s: float
    process: "subprocess.Popen[bytes] | None" = None
    """Of a cold child."""


@dataclass(frozen=True, slots=True)
class EndedChild:
    """A child that has ended, and what it left."""

    key: Any
    code: int
    """Exit code; negative: the signal that ended it."""
    wall_s: float
    folder: Path

    def answer(self, kind: type[T]) -> T | None:
        """None where it ended without one."""
        try:
            return read(self.folder / ANSWER, kind)
        except (OSError, msgspec.MsgspecError):
            return None

    @property
    def how(self) -> str:
        """How it ended, in words."""
        return f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"

    @property
    def output(self) -> str:
        """The last lines of the output that was not shown."""
        return last_lines(self.folder / OUTPUT)


class Children:
    """A context in which children run. On leaving it, all of them are ended."""

    def __init__(
        self, name: str, *, preload: Sequence[str] = (), grace_s: float = 1.0, is_warm: bool = True
    ) -> None:
        """`preload`: modules a warm child starts with. `grace_s`: from SIGTERM to SIGKILL."""
        self._preload, self._grace_s = tuple(preload), grace_s
        self._is_warm = is_warm and can_fork()
        self._temporary = tempfile.TemporaryDirectory(prefix=f"tally-{name}-")
        self._lifeline, self._our_end = os.pipe()
        self._server: Server | None = None
        self._children: list[Child] = []
        self._count = 0

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, *_: object) -> None:
        if self._grace_s:
            for child in self._children:
                signal_group(child.pid, signal.SIGTERM)
            deadline_s = time.monotonic() + self._grace_s
            while self._children and time.monotonic() < deadline_s:
                self.collect_ended(POLL_S)
        for child in self._children:
            signal_group(child.pid, signal.SIGKILL)
            if child.process is not None:
                child.process.wait()
        if self._server is not None:
            self._server.close()  # it kills and reaps its children first
        os.close(self._our_end)
        os.close(self._lifeline)
        self._temporary.cleanup()

    @property
    def running(self) -> tuple[Any, ...]:
        """Their keys."""
        return tuple(child.key for child in self._children)

    def start(
        self,
        key: Any,
        request: Request,
        *,
        environment: Mapping[str, str] | None = None,
        cwd: str | None = None,
        output: Path | None = None,
        is_shown: bool = False,
    ) -> None:
        """Start a child.

        Args:
            key: names it among `running` and in `EndedChild`.
            request: what it does.
            environment: all variables; None for ours.
            cwd: None for ours.
            output: a file that stdout and stderr are appended to; None for one in its folder.
            is_shown: stdout and stderr go to our stderr instead.

        Raises OSError where it cannot be started.
        """
        self._count += 1
        folder = Path(self._temporary.name) / str(self._count)
        folder.mkdir()
        write(folder / REQUEST, request)
        environment = dict(os.environ if environment is None else environment)
        cwd = os.getcwd() if cwd is None else cwd
        target = None if is_shown else str(output or folder / OUTPUT)
        if target is not None:
            Path(target).touch()  # who waits for a line finds it, and a full disk is noticed here
        started_s = time.monotonic()
        pid = self._fork(folder, environment, cwd, target)
        process = None
        if pid is None:
            process = self._spawn(folder, environment, cwd, target)
            pid = process.pid
        self._children.append(Child(key, pid, folder, started_s, process))

    def _fork(
        self, folder: Path, environment: dict[str, str], cwd: str, target: str | None
    ) -> int | None:
        """Start a warm child; None where it has to start cold."""
        if not self._is_warm:
            return None
        try:
            if self._server is None:
                self._server = Server(self._preload, self._lifeline, environment, cwd)
            if not self._server.suits(environment, cwd):
                return None
            late = {name: environment[name] for name in LATE_VARIABLES if name in environment}
            return self._server.fork(Fork(str(folder), target, late))
        except ServerLostError:
            self._is_warm = False
            return None

    def _spawn(
        self, folder: Path, environment: dict[str, str], cwd: str, target: str | None
    ) -> "subprocess.Popen[bytes]":
        file = None if target is None else open(target, "ab")  # noqa: SIM115
        try:
            output = our_stderr() if file is None else file
            return subprocess.Popen(
                [sys.executable, "-m", "torchtally.runs", "cold", str(folder), str(self._lifeline)],
                env=environment,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[self._lifeline],
                start_new_session=True,
            )
        finally:
            if file is not None:
                file.close()

    def collect_ended(self, wait_s: float = 0.0) -> list[EndedChild]:
        """Children that have ended since the last call; waits up to `wait_s` for the first."""
        deadline_s = time.monotonic() + wait_s
        while True:
            left_s = max(deadline_s - time.monotonic(), 0.0)
            ended = self._collect_ended(min(left_s, POLL_S))
            if ended or left_s == 0.0 or not self._children:
                return ended

    def _collect_ended(self, wait_s: float) -> list[EndedChild]:
        codes = self._codes(wait_s)
        now_s = time.monotonic()
        ended = [
            EndedChild(child.key, codes[child.pid], now_s - child.started_s, child.folder)
            for child in self._children
            if child.pid in codes
        ]
        self._children = [child for child in self._children if child.pid not in codes]
        return ended

    def _codes(self, wait_s: float) -> dict[int, int]:
        """Exit codes by pid. What these children have left behind in their sessions is killed."""
        codes: dict[int, int] = {}
        for child in self._children:
            if child.process is not None and child.process.poll() is not None:
                codes[child.pid] = child.process.returncode
                signal_group(child.pid, signal.SIGKILL)
        warm = [child.pid for child in self._children if child.process is None]
        if warm and self._server is not None:
            try:
                codes |= self._server.collect_codes(0.0 if codes else wait_s)
            except ServerLostError:
                self._is_warm = False
                for pid in warm:
                    signal_group(pid, signal.SIGKILL)
                codes |= dict.fromkeys(warm, LOST)
        elif not codes:
            time.sleep(wait_s)
        return codes

    def signal(self, number: signal.Signals, name: str | None = None) -> None:
        """Send a signal to the children alone, or to the one whose key begins with a name: what
        they started serves them until they end.
        """
        for child in self._children:
            if name is None or child.key[0] == name:
                with suppress(ProcessLookupError):
                    os.kill(child.pid, number)


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Context in which SIGTERM raises SystemExit, so that contexts are left and children ended.
    Only the main thread can install it: another one is told by its waiter.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def exit_(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    handler = signal.signal(signal.SIGTERM, exit_)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def signal_group(group: int, number: signal.Signals) -> None:
    """Nothing happens where the process group has ended already."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def last_lines(path: Path) -> str:
    """The end of what a child printed; "" where it printed nothing."""
    try:
        with open(path, "rb") as file:
            file.seek(max(os.path.getsize(path) - TAIL_BYTES, 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.replace("\r", "\n").splitlines()[-LINES:])

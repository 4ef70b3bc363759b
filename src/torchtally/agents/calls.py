"""Commands that run for tools: some at a time, others wait, and each ends with its caller.

A command is a process with a session of its own. It is killed with all it started when its call is
cancelled, its time is over or the server ends; the kernel kills it where the server is killed
(PR_SET_PDEATHSIG of prctl(2)).
"""

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from torchtally.errors import TallyError

MOST_OUTPUT_BYTES = 16 << 20
"""Of a command's stdout: beyond it the command is ended."""
TAIL_BYTES = 8000
"""Of its stderr, kept for the message of a failure."""
PROGRESS_S = 1.0
CHUNK_BYTES = 1 << 16
TIMED_OUT = 124
PR_SET_PDEATHSIG = 1

Progress = Callable[[float, str], Awaitable[None]]
"""Is told the seconds since the call began, and what it does."""


class BusyError(TallyError):
    """Too many calls wait."""


@dataclass(frozen=True, slots=True)
class EndedCommand:
    """A command that has ended."""

    code: int
    stdout: str
    stderr: str
    """Its end."""


class CommandQueue:
    """The commands of a server."""

    def __init__(
        self, root: str, environment: Mapping[str, str], *, jobs: int, waiting: int, max_s: float
    ) -> None:
        """`jobs` run at a time, `waiting` others wait; none runs longer than `max_s`."""
        self._root, self._environment = root, dict(environment)
        self._slots = asyncio.Semaphore(jobs)
        self._most_calls = jobs + waiting
        self._calls = 0
        self._max_s = max_s

    async def run(self, words: Sequence[str], progress: Progress) -> EndedCommand:
        """Run `tally` with these words, as soon as it is its turn. Raises BusyError."""
        if self._calls >= self._most_calls:
            raise BusyError(f"{self._calls} calls run or wait: try again when some have ended.")
        started_s = time.monotonic()
        self._calls += 1
        try:
            if self._slots.locked():
                await progress(0.0, f"waiting: {self._calls - 1} calls before this one")
            async with self._slots:
                return await self._run(words, progress, started_s)
        finally:
            self._calls -= 1

    async def _run(
        self, words: Sequence[str], progress: Progress, started_s: float
    ) -> EndedCommand:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "torchtally", *words,
            cwd=self._root,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        readers = asyncio.gather(whole(process.stdout, process), tail(process.stderr))
        try:
            is_over = await self._wait(process, readers, progress, started_s)
            stdout, stderr = await readers
        finally:
            # Also what it left behind in its session: a script's own children.
            kill_group(process.pid)
            readers.cancel()
            await asyncio.shield(process.wait())
        code = TIMED_OUT if is_over else process.returncode
        assert code is not None
        return EndedCommand(code, stdout.decode("utf-8", "replace"), stderr)

    async def _wait(
        self,
        process: asyncio.subprocess.Process,
        readers: "asyncio.Future[tuple[bytes, str]]",
        progress: Progress,
        started_s: float,
    ) -> bool:
        """Wait for the end, telling how long it takes. Whether its time was over before."""
        deadline_s = time.monotonic() + self._max_s
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(PROGRESS_S):
                    await process.wait()
                return False
            elapsed_s = time.monotonic() - started_s
            await progress(elapsed_s, f"running for {elapsed_s:.0f} s")
            if time.monotonic() > deadline_s:
                kill_group(process.pid)
                return True


def end_with_parent() -> None:
    """Have the kernel kill this process when the one that started it has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """End a process and all of its session that stayed in its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


async def whole(stream: asyncio.StreamReader, process: asyncio.subprocess.Process) -> bytes:
    """All of a stream; beyond what is allowed its process is ended."""
    chunks: list[bytes] = []
    size_bytes = 0
    while chunk := await stream.read(CHUNK_BYTES):
        size_bytes += len(chunk)
        if size_bytes > MOST_OUTPUT_BYTES:
            kill_group(process.pid)
            return b""
        chunks.append(chunk)
    return b"".join(chunks)


async def tail(stream: asyncio.StreamReader) -> str:
    """The end of a stream."""
    kept: deque[bytes] = deque(maxlen=2)
    while chunk := await stream.read(CHUNK_BYTES):
        kept.append(chunk)
    return b"".join(kept)[-TAIL_BYTES:].decode("utf-8", "replace")

"""Our side of the server that warm children are forked from: start it, ask for forks, hear of ends.

JSON lines over a socket pair: `Fork` to the server, `Forked` and `Reaped` back. When the socket
closes, the server kills its children and ends (`serving`).
"""

import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping

import msgspec

RANK_OF = "TALLY_RANK_OF"
"""Of a rank of several (`ranks`): its number, and the folder of its mailbox."""
LATE_VARIABLES = ("CUDA_VISIBLE_DEVICES", RANK_OF)
"""Variables that are read when CUDA is first used, or a run starts: a warm child may have its own.

Any other one may have been read at import (OMP_NUM_THREADS, PYTHONPATH, PYTHONHASHSEED; the backend
in PYTORCH_CUDA_ALLOC_CONF, by a static initializer in c10/cuda/CUDACachingAllocator.cpp): a child
for which one differs from the server's starts cold."""
CLOSE_S = 5.0
"""Until a server that was told to end is killed."""


class Fork(msgspec.Struct, frozen=True):
    """Fork a child for the request in a folder."""

    folder: str
    output: str | None
    """The file that its output is appended to; None: the server's stderr."""
    environment: dict[str, str]
    """Of `LATE_VARIABLES`, those that are set."""


class Forked(msgspec.Struct, frozen=True, tag="forked"):
    """The child has started."""

    pid: int


class Reaped(msgspec.Struct, frozen=True, tag="reaped"):
    """A child has ended, and what it left behind in its session was killed."""

    pid: int
    code: int


Reply = Forked | Reaped


class ServerLostError(Exception):
    """The server has ended: it could not import a module, could not fork, or was killed."""


def can_fork() -> bool:
    """macOS's frameworks, which torch loads, do not survive a fork without an exec."""
    return sys.platform.startswith("linux")


def early(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that may be read at import."""
    return {name: text for name, text in environment.items() if name not in LATE_VARIABLES}


def our_stderr() -> int:
    """The descriptor of our stderr, or of nothing where our caller has closed it."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


class Server:
    """A server process, started with the environment and folder of its children."""

    def __init__(
        self, preload: tuple[str, ...], lifeline: int, environment: Mapping[str, str], cwd: str
    ) -> None:
        self._environment, self._cwd = early(environment), cwd
        self._socket, theirs = socket.socketpair()
        self._unread = b""
        self._pid: int | None = None
        self._codes: dict[int, int] = {}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "torchtally.runs", "warm", str(theirs.fileno()),
                 str(lifeline), *preload],
                env=dict(environment),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=our_stderr(),
                pass_fds=[theirs.fileno(), lifeline],
                start_new_session=True,
            )  # fmt: skip

    def suits(self, environment: Mapping[str, str], cwd: str) -> bool:
        """Whether a child forked here finds what a new interpreter would."""
        return self._cwd == cwd and self._environment == early(environment)

    def fork(self, fork: Fork) -> int:
        """The pid of a new child. Raises ServerLostError."""
        try:
            self._socket.sendall(msgspec.json.encode(fork) + b"\n")
        except OSError as error:
            raise ServerLostError from error
        self._pid = None
        while self._pid is None:
            self._hear()
        return self._pid

    def collect_codes(self, wait_s: float) -> dict[int, int]:
        """Exit codes by pid of children that have ended since. Raises ServerLostError."""
        if not self._codes and select.select([self._socket], [], [], wait_s)[0]:
            self._hear()
        codes, self._codes = self._codes, {}
        return codes

    def _hear(self) -> None:
        """Wait for replies."""
        try:
            data = self._socket.recv(65536)
        except OSError as error:
            raise ServerLostError from error
        if not data:
            raise ServerLostError
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            reply: Reply = msgspec.json.decode(line, type=Reply)
            if isinstance(reply, Forked):
                self._pid = reply.pid
            else:
                self._codes[reply.pid] = reply.code

    def close(self) -> None:
        """End it and its children; wait for that."""
        self._socket.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

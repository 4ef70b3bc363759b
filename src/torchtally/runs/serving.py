"""The server process: imports what children need once, then forks one for each request.

A forked child goes on as a new interpreter would that has just made the same imports, with its own
session, stdio, descriptors, `LATE_VARIABLES` and random state. What it has in common with its
siblings and a new interpreter would not: the seed of string hashes, `sys.orig_argv`, and objects
made at import that `gc.get_objects()` no longer lists (frozen, so that collections do not visit
them and their pages stay shared). Interpreter options (-X, -W) are the server's: none.

multiprocessing's forkserver would not do: it starts its children through pickled functions and a
`__main__` prepared for them, with our session and stdio.

Why forking is safe here: the only thread is the main one. torch starts its pools (OpenMP, autograd,
inter-op) when an operator first needs them, and importing runs no operator. NumPy's OpenBLAS starts
threads at import and has a `pthread_atfork` handler that joins them before a fork. CUDA is never
touched here, so that a child may initialize it.
"""

import gc
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper

import msgspec

from torchtally.runs.server import LATE_VARIABLES, Fork, Forked, Reaped, Reply


def serve(descriptor: int, preload: list[str]) -> Fork:
    """Fork children until the socket closes. Returns in each child; the server ends in here."""
    _import_silently(preload)
    if aliases := sys.modules.get("torchtally.virtual.aliases"):  # of children that simulate
        aliases.read_loaded_modules()
    gc.collect()
    gc.freeze()
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # else nothing is written to `wake`
    signal.set_wakeup_fd(wake)
    children: set[int] = set()
    unread = b""
    with socket.socket(fileno=descriptor) as ours:
        while True:
            ready, _, _ = select.select([descriptor, awake], [], [])
            if awake in ready:
                os.read(awake, 4096)
                for reaped in _reap(children):
                    _tell(ours, reaped)
            if descriptor in ready:
                data = ours.recv(65536)
                if not data:
                    _end(children)
                *lines, unread = (unread + data).split(b"\n")
                for line in lines:
                    fork = msgspec.json.decode(line, type=Fork)
                    pid = os.fork()
                    if not pid:
                        ours.close()
                        os.close(awake)
                        os.close(wake)
                        _renew(fork)
                        return fork
                    children.add(pid)
                    _tell(ours, Forked(pid))


def _import_silently(modules: list[str]) -> None:
    """Import without output: a child started cold prints the same to its own output."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    for module in modules:
        import_module(module)
    os.dup2(stderr, 2)
    os.close(stderr)
    os.close(nowhere)


def _tell(ours: socket.socket, reply: Reply) -> None:
    with suppress(OSError):  # the parent has ended: the next read returns nothing
        ours.sendall(msgspec.json.encode(reply) + b"\n")


def _reap(children: set[int]) -> list[Reaped]:
    reaped = []
    for pid in tuple(children):
        # The zombie keeps the pid from being given to another process while its group is killed.
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            continue
        _kill_group(pid)
        _, status = os.waitpid(pid, 0)
        children.remove(pid)
        reaped.append(Reaped(pid, os.waitstatus_to_exitcode(status)))
    return reaped


def _end(children: set[int]) -> None:
    for pid in children:
        _kill_group(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # one that has no session of its own yet
    for pid in children:
        os.waitpid(pid, 0)
    os._exit(0)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _renew(fork: Fork) -> None:
    """Give a forked process what a new one would have of its own."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for name in LATE_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(fork.environment)
    if fork.output is None:
        os.dup2(2, 1)
    else:
        output = os.open(fork.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = reopen(descriptor, name, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    if "numpy.random" in sys.modules:  # Python's own generator is seeded after a fork by itself
        sys.modules["numpy.random"].seed()


def reopen(descriptor: int, name: str, before: TextIOWrapper) -> TextIOWrapper:
    """Stream as Python opens a standard one at its start: by lines on a terminal, stderr always."""
    raw = FileIO(descriptor, "r" if name == "stdin" else "w", closefd=False)
    raw.name = f"<{name}>"
    buffer: FileIO | BufferedReader | BufferedWriter = raw
    if name == "stdin":
        buffer = BufferedReader(raw)
    elif not before.write_through:  # PYTHONUNBUFFERED: to the descriptor, past both buffers
        buffer = BufferedWriter(raw)
    return TextIOWrapper(
        buffer,
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=name == "stderr" or raw.isatty(),
        write_through=before.write_through,
    )

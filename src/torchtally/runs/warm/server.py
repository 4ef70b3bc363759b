"""The server: it loads what a run needs, waits for commands, forks one process for each, and ends.

It ends when nothing has asked for a while, when a file that it was loaded from has changed, and
when its socket is gone. Nothing of a script is ever loaded in it. It has one thread, as `serving`
says, and no child outlives it: each has asked the kernel for that.
"""

import fcntl
import gc
import marshal
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from importlib import import_module
from typing import Any

from torchtally.runs.warm.client import GO, MOST_DESCRIPTORS, PATIENCE_S, READY, REFUSED, peer
from torchtally.runs.warm.forked import become
from torchtally.runs.warm.identity import first_entry, identity, socket_place
from torchtally.runs.warm.loaded_files import LoadedFiles

PRELOAD = tuple(
    """
    torchtally.cli.run torchtally.tracer.script torchtally.gates.run torchtally.runs.request
    torchtally.runs.ranks.together torchtally.tracer.idle torchtally.timing.prediction
    torchtally.timing.targets torchtally.timing.calibration.library torchtally.fit.advisor
    torchtally.fit.network_advisor torchtally.brief.last_run torchtally.cli.run_report
    torchtally.cli.report torchtally.cli.ledgers torchtally.report.run_progress
    torchtally.report.report torchtally.report.text torchtally.report.plot
    torchtally.report.braille torchtally.report.placeholders torchtally.report.generation
    torchtally.report.formats.text torchtally.report.documents.run torchtally.report.gates
    torchtally.report.odd_sizes torchtally.report.advice torchtally.report.ledger sympy
    torch.fx.experimental.symbolic_shapes torch.nested._internal.sdpa torch.profiler._cupti_monitor
    """.split()
)
"""What a run of an eager script loads, sooner or later: a test holds it to that."""
MOST_SERVERS = 3
"""Of one user, in different environments: each holds some 300 MB."""
POLL_S = 20.0
"""Between two looks at whether the socket is still ours."""


def serve(digest: str, idle_s: float) -> None:
    """Serve commands. Returns in forks alone: what follows is the command's."""
    began_ns = time.time_ns()
    if identity() != digest:  # this start differs from the command's: nothing may be served
        os._exit(1)
    del sys.path[: len(first_entry())]
    place = socket_place(digest)
    lock = os.open(f"{place}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os._exit(0)  # another one is starting, or serves
    if servers_beside(place) >= MOST_SERVERS:
        os.unlink(f"{place}.lock")
        os._exit(0)
    for module in PRELOAD:
        import_module(module)
    aliases = sys.modules["torchtally.virtual.aliases"]
    aliases.read_loaded_modules()
    gc.collect()
    gc.freeze()
    loaded = LoadedFiles()
    if loaded.is_newer_than(began_ns):
        os._exit(1)  # the next command starts another
    _Server(place, lock, loaded, idle_s).serve()


def servers_beside(place: str) -> int:
    """Count this user's other servers, and remove what those that were killed have left."""
    count = 0
    for name in os.listdir(os.path.dirname(place)):
        other = os.path.join(os.path.dirname(place), name)
        if not name.endswith(".socket") or other == place:
            continue
        lock = os.open(f"{other}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            count += 1
        else:
            for left in (other, f"{other}.lock"):
                with suppress(FileNotFoundError):
                    os.unlink(left)
        os.close(lock)
    return count


class _Server:
    """Commands that run, and the socket that they come by."""

    def __init__(self, place: str, lock: int, loaded: LoadedFiles, idle_s: float) -> None:
        self._place, self._lock, self._loaded, self._idle_s = place, lock, loaded, idle_s
        self._running: dict[int, tuple[int, socket.socket]] = {}
        """(pid, connection to its command) by its pidfd."""
        self._pid = os.getpid()
        self._is_ending = False
        with suppress(FileNotFoundError):
            os.unlink(place)  # of one that was killed: we hold its lock
        self._listener = socket.socket(socket.AF_UNIX)
        mask = os.umask(0o177)
        self._listener.bind(place)
        os.umask(mask)
        self._inode = os.stat(place).st_ino
        self._listener.listen(64)
        self._on_sigterm = signal.signal(signal.SIGTERM, self._end)

    def serve(self) -> None:
        """Serve until the end. Returns in a fork, as the command."""
        asked_s = time.monotonic()
        while self._running or not self._is_ending:
            connections = [connection for _, connection in self._running.values()]
            inputs: list[Any] = [*self._running, *connections]
            inputs += [] if self._is_ending else [self._listener]
            readable, _, _ = select.select(inputs, [], [], min(POLL_S, self._idle_s))
            self._watch(readable)
            if self._listener in readable and not self._is_ending:
                asked_s = time.monotonic()
                if self._accept():
                    return
            is_idle = not self._running and time.monotonic() - asked_s >= self._idle_s
            if is_idle or not self._is_ours():
                self._leave()
        os._exit(0)

    def _is_ours(self) -> bool:
        try:
            return os.stat(self._place).st_ino == self._inode
        except OSError:
            return False

    def _leave(self) -> None:
        """Take no more commands."""
        if not self._is_ending and self._is_ours():
            os.unlink(self._place)
            os.unlink(f"{self._place}.lock")  # whoever starts now has another one
        self._is_ending = True

    def _end(self, number: int, frame: object) -> None:
        """SIGTERM: end, and what runs here with us."""
        if os.getpid() == self._pid:
            self._leave()
            os._exit(0)

    def _watch(self, readable: list[Any]) -> None:
        """Tell commands how their forks have ended; end the forks whose commands have gone."""
        for ended, (pid, connection) in list(self._running.items()):
            if ended in readable:
                status = os.waitpid(pid, 0)[1]
                with suppress(OSError):
                    connection.sendall(f"{status}\n".encode())
                connection.close()
                os.close(ended)
                del self._running[ended]
            elif connection in readable:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    os.killpg(pid, signal.SIGKILL)

    def _accept(self) -> bool:
        """Take a command; True in its fork."""
        connection, _ = self._listener.accept()
        connection.settimeout(PATIENCE_S)
        streams: list[int] = []
        pid = -1
        try:
            request = _request(connection, streams)
            if request is not None and peer(connection)[1] == os.getuid() and self._suits(request):
                connection.sendall(READY)
                if connection.recv(1) == GO:
                    pid = os.fork()
            elif request is not None and not self._is_ending:
                connection.sendall(REFUSED)
        except OSError:
            pass
        if pid == 0:
            signal.signal(signal.SIGTERM, self._on_sigterm)
            self._listener.close()
            os.close(self._lock)
            connection.close()
            for ended, (_, other) in self._running.items():
                os.close(ended)
                other.close()
            assert request is not None
            become(request, streams, self._pid)
            return True
        for stream in streams:
            os.close(stream)
        if pid < 0:
            connection.close()
            return False
        connection.settimeout(None)
        with suppress(OSError):  # as the fork does: whoever is first
            os.setpgid(pid, pid)
        self._running[os.pidfd_open(pid)] = pid, connection
        with suppress(OSError):
            connection.sendall(f"{pid}\n".encode())
        return False

    def _suits(self, request: dict[str, Any]) -> bool:
        """Whether the command would find what is loaded here."""
        if not self._loaded.is_current():
            self._leave()
            return False
        cwd = request["cwd"]
        files = [os.path.join(cwd, word) for word in request["argv"][1:] if "\0" not in word]
        folders = {cwd, *files, *request["path"], *(os.path.dirname(file) for file in files)}
        folders |= {os.path.dirname(os.path.realpath(file)) for file in files}
        return not self._loaded.is_shadowed_in(folders)


def _request(connection: socket.socket, streams: list[int]) -> dict[str, Any] | None:
    """What a command asks for; its descriptors are added to `streams`. None where it has gone."""
    text, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, MOST_DESCRIPTORS)
    streams += descriptors
    while len(text) < 8 or len(text) < 8 + int.from_bytes(text[:8], sys.byteorder):
        more = connection.recv(1 << 16)
        if not more:
            return None
        text += more
    request: dict[str, Any] = marshal.loads(text[8:])
    return request

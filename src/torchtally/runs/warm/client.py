"""A command that hands itself to the warm server, or finds none that suits and goes on by itself.

It imports next to nothing, since most commands are not served. Up to the word `GO` nothing has
been run, and whatever is wrong lets the command go on cold; from there on the fork alone runs it.
Ctrl-C and Ctrl-Z go to the fork's process group, as a terminal sends them; other signals to the
fork. The command ends as its fork ends; the fork ends where the command is killed.
"""

import _socket as socket
import marshal
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from torchtally.runs.warm.identity import first_entry, identity, socket_place

READY, GO, REFUSED = b"r", b"g", b"n"
"""The server can fork; the command asks for it; it has to run cold, and so would the next one."""
PATIENCE_S = 2.0
"""Until a server that does not answer is left alone."""
MOST_DESCRIPTORS = 200
"""That one message can carry (Linux: 253)."""
IDLE_S = 900.0
"""Until a server that nothing has asked ends."""
LOST = 1
"""Exit code where the server was killed, and the fork with it."""


def is_asked(arguments: list[str]) -> bool:
    """Whether the environment and the command let it be served. A viewer's terminal and the other
    ranks of a cluster are their own processes'.
    """
    return (
        arguments[:1] == ["run"]
        and sys.platform == "linux"
        and os.environ.get("TALLY_SERVE") != "0"
        and "TALLY_RANK_OF" not in os.environ
        and "--watch" not in arguments
    )


def run_warm() -> int | None:
    """Have this process's command run by a fork of the server. Returns its exit code, does not
    return where a signal ended it; None where it has to be run here.
    """
    if not is_asked(sys.argv[1:]):
        return None
    starts = os.environ.get("TALLY_SERVE") == "1"
    try:
        digest = identity()
        if not starts and not os.path.exists(socket_place(digest)):
            return None
        connection = connect(digest)
        if connection is None:
            if starts:
                start(digest, IDLE_S)
            return None
        descriptors = inherited_descriptors()
        if not {0, 1, 2} <= set(descriptors) or len(descriptors) > MOST_DESCRIPTORS:
            return None
        word = ask(connection, descriptors)
    except OSError:
        return None
    if word == READY:
        return attend(connection, descriptors)
    if not word and starts:  # files have changed: it ends
        with suppress(OSError):
            start(digest, IDLE_S)
    return None


def connect(digest: str) -> socket.socket | None:
    """A connection to the server; None where none listens. Raises OSError for another user's."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE_S)
    try:
        connection.connect(socket_place(digest))
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    if peer(connection)[1] != os.getuid():
        raise PermissionError("the socket is another user's")
    return connection


def peer(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end: `struct ucred`."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, user = (int.from_bytes(credentials[at : at + 4], sys.byteorder) for at in (0, 4))
    return pid, user


def inherited_descriptors() -> list[int]:
    """Descriptors that the caller has given: `<(command)` of a shell has one."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the folder's own
            if os.get_inheritable(int(name)):
                found.append(int(name))
    return sorted(found)


def ask(connection: socket.socket, descriptors: list[int]) -> bytes:
    """Say what is to be run; the server's answer, empty where it has ended. Raises OSError."""
    request = marshal.dumps(
        {
            "cwd": os.getcwd(),
            "environment": dict(os.environ),
            "argv": sys.argv,
            "orig_argv": sys.orig_argv,
            "path": first_entry(),
            "descriptors": descriptors,
        }
    )
    numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in descriptors)
    text = len(request).to_bytes(8, sys.byteorder) + request
    sent = connection.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
    connection.sendall(text[sent:])
    return connection.recv(1)


def attend(connection: socket.socket, descriptors: list[int]) -> int | None:
    """Let the fork run, pass signals on to it, and return or end as it has; None where the server
    has gone before.
    """
    connection.settimeout(None)
    own = {signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
    group = {signal.SIGINT, signal.SIGQUIT}
    ignored = {number for number in own | group if signal.getsignal(number) == signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_BLOCK, own | group | {signal.SIGTSTP})
    try:
        connection.sendall(GO)
    except OSError:  # it has ended, or waited for too long: nothing has been run
        signal.pthread_sigmask(signal.SIG_UNBLOCK, own | group | {signal.SIGTSTP})
        return None
    pid = _number(connection)
    if pid is None:
        return _lost()
    for number in own - ignored:
        signal.signal(number, lambda number, _: _send(os.kill, pid, number))
    for number in group - ignored:
        signal.signal(number, lambda number, _: _send(os.killpg, pid, number))
    signal.signal(signal.SIGTSTP, lambda number, _: _stop(pid))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, own | group | {signal.SIGTSTP})
    for descriptor in descriptors:
        if descriptor != 2:  # a pipe's reader waits for the fork alone
            os.close(descriptor)
    status = _number(connection)
    if status is None:
        _send(os.killpg, pid, signal.SIGKILL)
        return _lost()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _number(connection: socket.socket) -> int | None:
    """A line of the server's; None where it has ended."""
    line = b""
    while not line.endswith(b"\n"):
        try:
            more = connection.recv(1)
        except OSError:
            return None
        if not more:
            return None
        line += more
    return int(line)


def _stop(pid: int) -> None:
    """Ctrl-Z: stop, and go on together."""
    _send(os.killpg, pid, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGSTOP)
    _send(os.killpg, pid, signal.SIGCONT)


def _send(kill: Callable[[int, int], None], pid: int, number: int) -> None:
    """Nothing happens where it has ended."""
    with suppress(ProcessLookupError):
        kill(pid, number)


def _lost() -> int:
    message = "tally: error: the warm server was killed, and this run with it. Run it again.\n"
    with suppress(OSError):
        os.write(2, message.encode())
    return LOST


def start(digest: str, idle_s: float) -> None:
    """Start a server in the background, as no child of ours: a script may wait for its own."""
    words = [sys.executable, "-m", "torchtally.runs.warm", digest, str(idle_s)]
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(nowhere, descriptor)
            for descriptor in inherited_descriptors():
                if descriptor > 2:
                    os.close(descriptor)
            os.execv(sys.executable, words)
    finally:
        os._exit(0)

"""A Python that has torch loaded, and forks: each fork goes on as `python -c PROGRAM` would.

`tests/warm.py` runs this text by `python -c`, so that a fork's `__main__` and `sys.path` are those
of `python -c`. Its end is an interpreter's own: threads, exit handlers, flushed streams. Where the
program returned or left by `sys.exit`, only the modules are not taken apart: that costs 0.3 s of
the 0.35 s of a command that does nothing, since every page of theirs is copied for it.
Nothing here may start a thread: a fork has only the thread that forked.

For each connection there are two forks: one waits for the other, and sends a line with its pid
and, at its end, a line with its status.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys

import torchtally

COLD = {"sweep", "bench", "lightning_callback"}
"""Rooms and modules that few of these tests need: lightning alone takes 6 s of CPU time."""
LARGEST = 64
"""Descriptors have smaller numbers, as the client says, too."""

for _module in ("torch.optim", "torch.utils.checkpoint", "torch.utils.data"):
    importlib.import_module(_module)
for _info in pkgutil.walk_packages(torchtally.__path__, "torchtally."):
    if not COLD & set(_info.name.split(".")) and not _info.name.endswith("__main__"):
        importlib.import_module(_info.name)
torchtally.chips.known_chips()
torchtally.virtual.aliases.read_loaded_modules()
# An interpreter that ends looks for cycles among all objects: 0.8 s of CPU time per fork for those
# loaded here, and every page that it touches is copied (Python/pylifecycle.c, finalize_modules).
gc.collect()
gc.freeze()


def request(connection):
    """(what the client asks for, its descriptors: standard streams, and what it inherited)."""
    text, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, LARGEST)
    while not text.endswith(b"\n"):
        text += connection.recv(1 << 20)
    return json.loads(text), descriptors


def watch(connection, pid):
    """Tell the client how the fork ends; end the fork where the client or the tests have gone."""
    connection.sendall(f"{pid}\n".encode())
    ended = os.pidfd_open(pid)
    readable, _, _ = select.select([ended, connection, 0], [], [])
    if ended not in readable:
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    with contextlib.suppress(OSError):
        connection.sendall(f"{status}\n".encode())
    os._exit(0)


def reap(number, frame):
    """Wait for the watching forks that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def program(listener):
    """Serve until stdin ends. Returns in a fork alone, with the program that it is to run."""
    print("ready", flush=True)
    # Waited for, so that their CPU time counts as this process's: that of ignored ones is lost.
    signal.signal(signal.SIGCHLD, reap)
    while True:
        readable, _, _ = select.select([listener, 0], [], [])
        if 0 in readable:
            os._exit(0)
        connection, _ = listener.accept()
        asked, streams = request(connection)
        if os.fork():
            connection.close()
            for stream in streams:
                os.close(stream)
            continue
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        pid = os.fork()
        if pid:
            for number in (1, 2, *streams):
                os.close(number)
            watch(connection, pid)
        connection.close()
        # Out of the way first: one's number may be where another one belongs.
        streams = [(stream, fcntl.fcntl(stream, fcntl.F_DUPFD, LARGEST)) for stream in streams]
        for stream, _ in streams:
            os.close(stream)
        for number, (_, stream) in zip(asked["descriptors"], streams, strict=True):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        sys.argv[1:] = asked["arguments"]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return asked["program"]


def run(program, names):
    """The program as `exec` does it, and the quick end."""
    import atexit
    import os
    import sys
    import threading

    status = 0
    try:
        exec(program, names)
    except SystemExit as end:
        if not (end.code is None or isinstance(end.code, int)):
            raise
        status = int(end.code or 0)
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except (
        OSError
    ):  # as where a pipe has no reader: what to say and the status are the interpreter's
        sys.exit(status)
    os._exit(status & 0xFF)


_listener = socket.socket(socket.AF_UNIX)
_listener.bind(sys.argv.pop(1))
_listener.listen()
_program = program(_listener)
_run = run
_names = globals()
for _name in [name for name in _names if not name.startswith("__")]:
    if _name not in ("_program", "_run", "_names"):
        del _names[_name]
del _name
_names.pop("_run")(_names.pop("_program"), _names.pop("_names"))

"""A Python that has torch loaded, and forks: each fork goes on as `python -c PROGRAM` would.

`tests/warm.py` runs this text by `python -c`, so that a fork's `__main__` and `sys.path` are those
of `python -c`. Its end is an interpreter's own: threads, exit handlers, flushed streams. Where the
program returned or left by `sys.exit`, only the modules are not taken apart: that costs 0.3 s of
the 0.35 s of a command that does nothing, since every page of theirs is copied for it.
Nothing here may start a thread: a fork has only the thread that forked.

A client gets a line with the pid of its fork and, at its end, a line with its status.
"""

import ast
import contextlib
import fcntl
import gc
import importlib
import multiprocessing.spawn
import os
import pkgutil
import select
import signal
import socket
import sys
import weakref

import torchtally

COLD = {"sweep", "bench", "lightning_callback", "durable_callback"}
"""Rooms and modules that few of these tests need: lightning alone takes 6 s of CPU time."""
PYTHON = sys.argv.pop(2)
"""What starts programs here: the forks' own interpreter, so that what they start is warm, too."""
LARGEST = 64
"""Descriptors have smaller numbers, as the client says, too."""

for _module in ("torch.optim", "torch.distributed.optim", "torch.distributed.pipelining",
                "torch.utils.checkpoint", "torch.utils.data"):  # fmt: skip
    importlib.import_module(_module)
for _info in pkgutil.walk_packages(torchtally.__path__, "torchtally."):
    if not COLD & set(_info.name.split(".")) and not _info.name.endswith("__main__"):
        importlib.import_module(_info.name)
torchtally.chips.known_chips()
torchtally.virtual.aliases.read_loaded_modules()
# What torch's libraries would take apart at an exit: 50 ms for copies of the pages of 200 of them.
for _finalizer in list(weakref.finalize._registry):
    _finalizer.atexit = False
# An interpreter that ends looks for cycles among all objects: 0.8 s of CPU time per fork for those
# loaded here, and every page that it touches is copied (Python/pylifecycle.c, finalize_modules).
gc.collect()
gc.freeze()


def request(connection):
    """(what the client asks for, its descriptors: standard streams, and what it inherited).

    What it asks for is None where it ended before it had said so.
    """
    text, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, LARGEST)
    while not text.endswith(b"\n"):
        more = connection.recv(1 << 20)
        if not more:
            return None, descriptors
        text += more
    return ast.literal_eval(text.decode()), descriptors


def watch(running, readable):
    """Tell the clients of programs that have ended; end the programs whose clients have gone."""
    for ended, (pid, connection) in list(running.items()):
        if connection in readable:
            os.kill(pid, signal.SIGKILL)
        if connection in readable or ended in readable:
            status = os.waitpid(pid, 0)[1]
            with contextlib.suppress(OSError):
                connection.sendall(f"{status}\n".encode())
            connection.close()
            os.close(ended)
            del running[ended]


def program(listener):
    """Serve until stdin ends. Returns in a fork alone, with the program that it is to run."""
    running = {}  # (pid, connection to its client) by its pidfd
    while True:
        connections = [connection for _, connection in running.values()]
        readable, _, _ = select.select([listener, 0, *running, *connections], [], [])
        if 0 in readable:
            for pid, _ in running.values():
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        watch(running, readable)
        if listener not in readable:
            continue
        connection, _ = listener.accept()
        asked, streams = request(connection)
        pid = os.fork() if asked else None
        if pid != 0:
            for stream in streams:
                os.close(stream)
            if pid:
                running[os.pidfd_open(pid)] = pid, connection
                with contextlib.suppress(OSError):
                    connection.sendall(f"{pid}\n".encode())
            continue
        listener.close()
        connection.close()
        for ended, (_, connection) in running.items():
            os.close(ended)
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
        sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
        sys.executable = PYTHON
        multiprocessing.spawn.set_executable(PYTHON)
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
_path = sys.argv.pop(1)
_listener.bind(_path + ".new")
_listener.listen()
os.rename(_path + ".new", _path)  # whoever sees it can connect
_program = program(_listener)
_run = run
_names = globals()
for _name in [name for name in _names if not name.startswith("__")]:
    if _name not in ("_program", "_run", "_names"):
        del _names[_name]
del _name
_names.pop("_run")(_names.pop("_program"), _names.pop("_names"))

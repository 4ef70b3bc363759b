"""What makes a fork of the server the command that was asked for.

It has the command's arguments, variables, folder, descriptors and standard streams, and a process
group of its own, so that it can be stopped with all that it has started. What differs from a cold
command: it has no controlling terminal (`/dev/tty`), its parent is the server, and objects made at
imports are frozen (`gc.freeze`), so that they are not copied when garbage is looked for.
"""

import ctypes
import fcntl
import importlib
import os
import signal
import sys
from typing import Any

from torchtally.runs.serving import reopen

PARENT_DEATH_SIGNAL = 1
"""`PR_SET_PDEATHSIG` of prctl(2)."""


def become(request: dict[str, Any], streams: list[int], server: int) -> None:
    """Become the command, whose descriptors have arrived under other numbers."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    lowest = max(request["descriptors"]) + 1
    # Out of the way first: one's number may be where another one belongs.
    moved = [fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, lowest) for stream in streams]
    for stream in streams:
        os.close(stream)
    for number, stream in zip(request["descriptors"], moved, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:], sys.orig_argv[:] = request["argv"], request["orig_argv"]
    sys.path[:0] = request["path"]
    importlib.invalidate_caches()
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        file = reopen(descriptor, name, getattr(sys, name))
        setattr(sys, name, file)
        setattr(sys, f"__{name}__", file)
    if "numpy.random" in sys.modules:  # Python's own generator is seeded after a fork by itself
        sys.modules["numpy.random"].seed()

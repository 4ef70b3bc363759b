"""Python's own functions on files and time, as they were before anything is replaced.

Everything in this package calls these: a stand-in must not meet another one.
"""

import builtins
import io
import os
import time
from typing import Any


class Natives:
    """Attributes of a module, by name, as they were when this module was imported."""

    def __init__(self, module: Any, names: tuple[str, ...]) -> None:
        for name in names:
            if hasattr(module, name):
                setattr(self, name, getattr(module, name))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this system has no {name}")

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__


READING = (
    "stat", "lstat", "access", "readlink", "statvfs", "pathconf", "getxattr", "listxattr",
    "listdir", "scandir", "chdir", "getcwd", "getcwdb",
)  # fmt: skip
CHANGING = (
    "open", "mkdir", "rmdir", "remove", "unlink", "rename", "replace", "link", "symlink", "chmod",
    "lchmod", "chown", "lchown", "utime", "truncate", "setxattr", "removexattr", "chflags",
    "lchflags", "fchmod", "fchown", "mkfifo", "mknod", "closerange",
)  # fmt: skip

OS: Any = Natives(os, (*READING, *CHANGING))
TIME: Any = Natives(
    time,
    ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "sleep"),
)
OPEN: Any = builtins.open
OPEN_CODE: Any = io.open_code
FILE_IO = io.FileIO

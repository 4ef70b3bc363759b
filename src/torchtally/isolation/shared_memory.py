"""Shared memory of other processes, which has names and no place among the user's files.

The kernel's guard knows it as files of one directory, in which a run must be able to make its own.
So Python's functions are led here: what existed before is a copy, and stays.
"""

import os
import sys
from importlib import import_module
from typing import Any

from torchtally.isolation.files import Files
from torchtally.isolation.natives import OS
from torchtally.virtual.stand_ins import StandIn

FOLDER = "/dev/shm"
"""Where glibc has what `shm_open` makes."""


def shared_names() -> list[str]:
    return list(OS.listdir(FOLDER)) if os.path.isdir(FOLDER) else []


def shared_memory(files: Files) -> list[StandIn]:
    """What is replaced in the module that opens it."""
    if sys.platform != "linux":
        return []
    module = import_module("_posixshmem")
    native_open, native_unlink = module.shm_open, module.shm_unlink

    def shm_open(path: str, flags: int, mode: int = 0o777) -> int:
        name = path.removeprefix("/")
        if files.is_off or name not in files.shared or flags & os.O_EXCL:
            return int(native_open(path, flags, mode))
        return copy_of(os.path.join(FOLDER, name))

    def shm_unlink(path: str) -> None:
        if files.is_off or path.removeprefix("/") not in files.shared:
            native_unlink(path)

    return [StandIn(module, "shm_open", shm_open), StandIn(module, "shm_unlink", shm_unlink)]


def copy_of(path: str) -> int:
    """An open copy without a name."""
    copy = os.memfd_create("copy", os.MFD_CLOEXEC)
    source: Any = OS.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while block := os.read(source, 1 << 20):
            os.write(copy, block)
    finally:
        os.close(source)
    return copy

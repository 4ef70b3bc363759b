"""The files that a process was loaded from, and whether a new one would load the same.

A file that was changed, removed or replaced has another time of change (`ctime`, which programs
cannot set), size or number; a module that was added stands in a folder of `sys.path`.
"""

import os
import sys
from collections.abc import Iterable, Iterator

import torchtally

IMPORTABLE = (".py", ".pyc", ".so", ".pth", "-info", ".egg", ".egg-link", ".zip")
State = tuple[int, ...] | None


class LoadedFiles:
    """What this process has loaded, and as of when."""

    def __init__(self) -> None:
        self._states = {path: state_of(path) for path in set(_loaded_files())}
        self._names = {path: importable_names(path) for path in set(sys.path)}
        self._modules = {name.partition(".")[0] for name in sys.modules} - {"__main__"}

    def is_newer_than(self, began_ns: int) -> bool:
        """Whether a file has changed since a time, so that an older one may have been loaded; file
        systems' clocks are some milliseconds behind.
        """
        began_ns -= 10**9
        return any(state is None or state[0] >= began_ns for state in self._states.values())

    def is_current(self) -> bool:
        """Whether all files are as they were."""
        return all(state_of(path) == state for path, state in self._states.items()) and all(
            importable_names(path) == names for path, names in self._names.items()
        )

    def is_shadowed_in(self, folders: Iterable[str]) -> bool:
        """Whether a folder has a module of the name of one that is loaded: a script there might
        have imported that one.
        """
        return any(
            name.partition(".")[0] in self._modules
            and (name.endswith((".py", ".pyc", ".so")) or _is_package(os.path.join(path, name)))
            for path in folders
            for name in importable_names(path)
        )


def state_of(path: str) -> State:
    """What changes with a file's content; None where it is missing."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ctime_ns, found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


def importable_names(folder: str) -> frozenset[str]:
    """Names in a folder that an import may find; none where there is no such folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return frozenset()
    return frozenset(name for name in names if name.endswith(IMPORTABLE) or "." not in name) - {
        "__pycache__"
    }


def _is_package(path: str) -> bool:
    return os.path.exists(os.path.join(path, "__init__.py"))


def _loaded_files() -> Iterator[str]:
    yield sys.executable
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and os.path.isabs(path):  # `torch.ops` says that it is "_ops.py"
            yield path
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            path = line[line.find("/") :].rstrip("\n") if "/" in line else ""
            if path and not path.startswith(("/dev/", "/memfd:", "/SYSV")):
                yield path
    for folder, folders, names in os.walk(os.path.dirname(torchtally.__file__)):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (os.path.join(folder, name) for name in names)  # its tables are read later
    for folder in sys.path:
        for name in importable_names(folder):
            if name.endswith(".pth"):
                yield os.path.join(folder, name)
    if sys.prefix != sys.base_prefix:
        yield os.path.join(sys.prefix, "pyvenv.cfg")

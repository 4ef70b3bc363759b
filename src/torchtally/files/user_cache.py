"""Folders of ours in the user's cache: bounded, and safe to delete at any time."""

import os
from contextlib import suppress
from pathlib import Path


def cache_folder(name: str) -> Path:
    """The folder of this name, which may not exist yet: below XDG_CACHE_HOME, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "torchtally", name)


def make_room(path: Path, most_bytes: int) -> None:
    """Remove the files that were read longest ago, until the folder of this one holds at most
    so many bytes.
    """
    newest_first = sorted(path.parent.iterdir(), key=lambda file: -file.stat().st_mtime)
    held_bytes = 0
    for file in newest_first:
        held_bytes += file.stat().st_size
        if held_bytes > most_bytes and file != path:
            file.unlink(missing_ok=True)


def touch(path: Path) -> None:
    """Note that a file was read."""
    with suppress(OSError):
        os.utime(path)

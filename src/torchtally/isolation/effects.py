"""What an isolated run has written, removed and started, for its report."""

import os
import shutil
import stat
from collections.abc import Iterator, Mapping

from torchtally.isolation.files import Files
from torchtally.isolation.journal import JOURNAL
from torchtally.isolation.natives import OS
from torchtally.isolation.overlay import Overlay
from torchtally.isolation.places import parent_of, place_at
from torchtally.trace import Effect, EffectKind, FileId, StubFile


def effects_of(files: Files, saved: Mapping[FileId, StubFile]) -> list[Effect]:
    """All effects; `saved` by the files' devices and inodes."""
    files.overlay.refresh()
    return [
        *written_files(files.overlay, saved),
        *taken_away(files.overlay),
        *(Effect(EffectKind.PROCESS, name, count=count) for name, count in files.children.items()),
    ]


def written_files(overlay: Overlay, saved: Mapping[FileId, StubFile]) -> Iterator[Effect]:
    for path, status in upper_files(overlay.folder):
        stub = saved.get((status.st_dev, status.st_ino))
        placeholder_bytes = 0 if stub is None else stub.placeholder_bytes
        yield Effect(
            EffectKind.WRITTEN,
            overlay.logical(path),
            bytes=status.st_size + placeholder_bytes,
            placeholder_bytes=placeholder_bytes,
        )


def upper_files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """All files of a run, in the order of their names."""
    for directory, directories, names in os.walk(folder):
        directories.sort()
        for name in sorted(names):
            path = os.path.join(directory, name)
            status = OS.lstat(path)
            if path != os.path.join(folder, JOURNAL) and not stat.S_ISDIR(status.st_mode):
                yield path, status


def taken_away(overlay: Overlay) -> Iterator[Effect]:
    """What existed before and was removed or renamed, and not written anew."""
    moved = {below: path for path, below in overlay.lowers.items() if below is not None}
    for before, path in moved.items():
        yield Effect(EffectKind.RENAMED, f"{before} -> {path}")
    for path, lower in overlay.lowers.items():
        is_replaced = place_at(overlay.upper(path)) is not None
        existed = overlay.lowers.get(parent_of(path), path) is not None
        if lower is None and path not in moved and existed and not is_replaced:
            yield Effect(EffectKind.REMOVED, path)


def drop_if_empty(files: Files) -> None:
    """Remove the folder of a run that has written nothing."""
    folder = files.overlay.folder
    if place_at(folder) is not None and set(OS.listdir(folder)) <= {JOURNAL}:
        shutil.rmtree(folder)

"""The checkpoints of a run: RUN/checkpoints/step-00000500 and so on.

    step-00000500/        whole: it gets this name once everything in it is durable
    .new-500-<random>/    being written, or left over from a crash
    .old-500-<random>/    being removed
    damaged-00000500-<random>/   refused on resume, and kept for inspection

The next training here removes the hidden ones. No step is saved twice: a run continues after its
newest checkpoint.
"""

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchtally.checkpoints.disk import Directory, is_there, sync_way_to
from torchtally.checkpoints.manifest import MOST_BYTES, Manifest, Piece, read_manifest
from torchtally.checkpoints.manifest import NAME as MANIFEST
from torchtally.checkpoints.shard import check_shard
from torchtally.errors import CheckpointError, UsageError

FOLDER = "checkpoints"
NAMED = re.compile(r"step-([0-9]{8}|[1-9][0-9]{8,17})")
UNFINISHED = re.compile(r"\.(new|old)-[0-9]+-[0-9a-f]{16}")


class Checkpoints:
    """The checkpoints below a run's folder. Every failure is a CheckpointError."""

    def __init__(self, run: Path | str, *, follows_links: bool = False) -> None:
        self.path = Path(run) / FOLDER
        self._follows_links = follows_links
        self._is_way_synced = False

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder for this process. Raises UsageError while another run trains here."""
        with self._ensure() as folder:
            if not folder.lock():
                raise UsageError(
                    f"{self.path}: another run is training there. Give this one its own "
                    "folder: --log.folder runs/other."
                )
            yield

    def steps(self) -> list[int]:
        """The steps of all checkpoints, damaged ones included; newest first."""
        if not is_there(self.path):
            return []
        with self._open() as folder:
            return _steps(folder)

    def manifest(self, step: int) -> Manifest:
        """The manifest of a checkpoint, whose tensors may still be damaged."""
        with self._open() as folder, folder.inner(name_of(step)) as inner:
            place = inner.path / MANIFEST
            if inner.size_bytes(MANIFEST) > MOST_BYTES:
                raise CheckpointError(f"{place}: is too large to be a manifest.")
            manifest = read_manifest(b"".join(inner.chunks(MANIFEST)), str(place))
        if manifest.step != step:
            raise CheckpointError(f"{place}: belongs to step {manifest.step}.")
        return manifest

    def check(self, manifest: Manifest, *, part: int = 0, parts: int = 1) -> None:
        """Check every byte of every file in the manifest (of every `parts`-th file) against its
        checksum.
        """
        pieces: dict[str, list[Piece]] = {file: [] for file in manifest.files}
        for tensor in manifest.tensors.values():
            for piece in tensor.pieces:
                pieces[piece.file].append(piece)
        with self._open() as folder, folder.inner(name_of(manifest.step)) as inner:
            # Other files are ignored: desktops, backups and network file systems leave some.
            for name in sorted(manifest.files)[part::parts]:
                check_shard(inner, name, manifest.files[name], pieces[name])

    def begin(self, step: int) -> Directory:
        """A directory for a new checkpoint, under a hidden name."""
        with self._ensure() as folder:
            if not self._is_way_synced:
                sync_way_to(self.path)
                self._is_way_synced = True
            return folder.make(_hidden_name("new", step))

    def join(self, name: str) -> Directory:
        """An existing directory: one that another rank began, or a whole checkpoint."""
        with self._open() as folder:
            return folder.inner(name)

    def commit(self, new: str, manifest: Manifest) -> Path:
        """Write the manifest and rename the directory, whose files are already durable.

        A checkpoint of the same step stays, and is an error.
        """
        name = name_of(manifest.step)
        content = manifest.to_bytes()
        with self._open() as folder:
            with folder.inner(new) as inner:
                inner.write(MANIFEST, [content], len(content))
                inner.sync()
            folder.rename(new, name)
        return self.path / name

    def discard(self, new: str) -> None:
        """Remove a directory that was begun."""
        with self._open() as folder:
            folder.remove(new)

    def prune(self, keep_last: int, keep_every: int | None, best_step: int | None = None) -> None:
        """Remove all but the newest ones, the best one and those of steps that are kept forever."""
        with self._open() as folder:
            for step in _steps(folder)[keep_last:]:
                if step != best_step and (keep_every is None or step % keep_every):
                    self._remove(folder, step)

    def set_aside(self, step: int) -> Path:
        """Rename a damaged checkpoint, so that it is kept but not found again."""
        aside = f"damaged-{step:08}-{secrets.token_hex(4)}"
        with self._open() as folder:
            folder.rename(name_of(step), aside)
        return self.path / aside

    def clean(self) -> None:
        """Remove what a crash left behind. Requires the lock."""
        if not is_there(self.path):
            return
        with self._open() as folder:
            for name in folder.names():
                if UNFINISHED.fullmatch(name):
                    folder.remove(name)

    def clear(self) -> None:
        """Remove every checkpoint, for a run that replaces another."""
        self.clean()
        for step in self.steps():
            with self._open() as folder:
                self._remove(folder, step)

    def _remove(self, folder: Directory, step: int) -> None:
        """Rename first: a half-removed checkpoint must not be found."""
        hidden = _hidden_name("old", step)
        folder.rename(name_of(step), hidden)
        folder.remove(hidden)

    def _open(self) -> Directory:
        return Directory.open(self.path, follows_links=self._follows_links)

    def _ensure(self) -> Directory:
        return Directory.ensure(self.path, follows_links=self._follows_links)


def name_of(step: int) -> str:
    return f"step-{step:08}"


def _steps(folder: Directory) -> list[int]:
    """The newest first."""
    return sorted(
        (int(match[1]) for match in map(NAMED.fullmatch, folder.names()) if match), reverse=True
    )


def _hidden_name(what: str, step: int) -> str:
    return f".{what}-{step}-{secrets.token_hex(8)}"

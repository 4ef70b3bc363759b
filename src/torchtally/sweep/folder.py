"""The folder of a sweep, locked for one process.

    sweep.json       the definition; a different one is refused
    config.toml      the base config, as it was when the sweep began
    NAME/            a run, as `tally train` writes it, with
    NAME/output.txt      its output
    NAME/result.json     how it ended; missing until it has
    results.json     all results, rewritten whenever the sweep ends

Files are replaced atomically.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from torchtally.checkpoints.disk import Directory
from torchtally.checkpoints.folder import FOLDER as CHECKPOINTS
from torchtally.errors import UsageError
from torchtally.files.atomic import write_atomically
from torchtally.sweep.definition import Definition, SweepPoint, difference, load_definition
from torchtally.train.logs.jsonl import NAME as LOG

DEFINITION = "sweep.json"
CONFIG = "config.toml"
OUTPUT = "output.txt"
RESULT = "result.json"
RESULTS = "results.json"


class SweepFolder:
    """Created by `open_folder`, which holds the lock."""

    def __init__(self, path: Path, definition: Definition) -> None:
        self.path, self.definition = path, definition

    @property
    def config(self) -> Path:
        return self.path / CONFIG

    def run(self, point: SweepPoint) -> Path:
        return self.path / point.name

    def output(self, point: SweepPoint) -> Path:
        return self.run(point) / OUTPUT

    def has_log(self, point: SweepPoint) -> bool:
        """Whether the run was ever started."""
        return (self.run(point) / LOG).exists()

    def result(self, point: SweepPoint) -> Path:
        """How the run ended; missing until it has."""
        return self.run(point) / RESULT

    def note(self, point: SweepPoint, ending: msgspec.Struct) -> None:
        """Store how the run ended."""
        self.run(point).mkdir(exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(ending), indent=1).decode()
        _write(self.result(point), f"{text}\n")

    def begin(self, point: SweepPoint) -> None:
        """Prepare to start the run, possibly again."""
        self.run(point).mkdir(exist_ok=True)
        self.result(point).unlink(missing_ok=True)

    def remove_checkpoints(self, point: SweepPoint) -> None:
        """Remove the checkpoints of a finished run, unless the folder is a symbolic link."""
        checkpoints = self.run(point) / CHECKPOINTS
        if checkpoints.is_dir() and not checkpoints.is_symlink():
            shutil.rmtree(checkpoints, ignore_errors=True)

    def write_results(self, document: str) -> None:
        _write(self.path / RESULTS, document)


@contextmanager
def open_folder(
    path: Path, definition: Definition | None, *, resumes: bool
) -> Iterator[SweepFolder]:
    """The sweep's folder, locked: a new one, or with `resumes` an existing one.

    Without a definition, the folder's is used. Raises UsageError if another process holds the lock,
    if a sweep exists and is not resumed or differs, or if the folder holds other files.
    """
    path = path.absolute()
    there = path / DEFINITION
    if definition is None and not there.exists():
        raise UsageError(f"{path}: no sweep to resume. Give CONFIG and --grid or --random.")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with Directory.open(path) as folder:
            if not folder.lock():
                raise UsageError(f"{path}: another sweep is running there. Use another --out.")
            kept = load_definition(there) if there.exists() else None
            _check(path, kept, definition, resumes)
            chosen = definition or kept
            assert chosen is not None
            _write(path / CONFIG, chosen.toml)
            if kept is None:
                _write(there, chosen.as_text())
            yield SweepFolder(path, kept or chosen)
    except OSError as error:
        where = error.filename or path
        raise UsageError(f"{where}: cannot be written ({error.strerror}).") from error


def _check(
    path: Path, kept: Definition | None, definition: Definition | None, resumes: bool
) -> None:
    if kept is None:
        begun = (CONFIG,)  # left by a sweep that was killed while it began
        others = [
            file.name for file in path.iterdir() if file.name[0] != "." and file.name not in begun
        ]
        if others:
            raise UsageError(
                f"{path}: is not empty and contains no sweep ({min(others)}). Use another --out."
            )
        return
    if not resumes:
        raise UsageError(
            f"{path}: holds a sweep of {len(kept.points)} runs. Continue it with --resume, or use "
            "another --out."
        )
    if definition is not None and (text := difference(kept, definition)):
        raise UsageError(f"{path}: holds another sweep. Use another --out.\n{text}")


def _write(path: Path, text: str) -> None:
    write_atomically(str(path), text.encode("utf-8"))

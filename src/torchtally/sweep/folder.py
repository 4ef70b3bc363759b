"""A sweep's folder, for one process at a time.

    sweep.json       the definition; another one is refused
    config.toml      the config that all runs start from, as it was at the beginning
    NAME/            a run: what `tally train` writes, and
    NAME/output.txt      all that it said
    NAME/result.json     how it ended; without it, it has not
    results.json     all results, written anew whenever the sweep ends

Files are replaced whole or not at all.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torchtally.atomic import write_atomically
from torchtally.errors import UsageError
from torchtally.sweep.definition import Definition, SweepPoint, difference, read_definition

DEFINITION = "sweep.json"
CONFIG = "config.toml"
OUTPUT = "output.txt"
RESULT = "result.json"
RESULTS = "results.json"
LOCK = ".lock"
CHECKPOINTS = "checkpoints"
LOG = "log.jsonl"


class SweepFolder:
    """Made by `open_folder`, which holds the lock."""

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
        """Whether the run has begun at some time."""
        return (self.run(point) / LOG).exists()

    def result(self, point: SweepPoint) -> Mapping[str, Any] | None:
        """How the run ended, as it was noted; None where it has not, or the note is damaged."""
        try:
            result = json.loads((self.run(point) / RESULT).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        return result if isinstance(result, dict) else None

    def note(self, point: SweepPoint, result: Mapping[str, Any]) -> None:
        """Keep how the run ended."""
        self.run(point).mkdir(exist_ok=True)
        _write(self.run(point) / RESULT, _json(result))

    def begin(self, point: SweepPoint) -> None:
        """The run is to be made, maybe again: it has not ended."""
        self.run(point).mkdir(exist_ok=True)
        (self.run(point) / RESULT).unlink(missing_ok=True)

    def remove_checkpoints(self, point: SweepPoint) -> None:
        """Remove the checkpoints of a run that will not go on. One behind a link stays."""
        checkpoints = self.run(point) / CHECKPOINTS
        if checkpoints.is_dir() and not checkpoints.is_symlink():
            shutil.rmtree(checkpoints, ignore_errors=True)

    def write_results(self, document: Mapping[str, Any]) -> None:
        _write(self.path / RESULTS, _json(document))


@contextmanager
def open_folder(
    path: Path, definition: Definition | None, *, resumes: bool
) -> Iterator[SweepFolder]:
    """The sweep's folder while it goes on: a new one, or with `resumes` one that there is.

    Without a definition, that of the folder. Raises UsageError where another process has it, where
    a sweep is there and not to be resumed, or is not the same one, or other things are there.
    """
    path = path.absolute()
    there = path / DEFINITION
    if definition is None and not there.exists():
        raise UsageError(
            f"{path}: there is no sweep to resume. Give CONFIG and --grid or --random."
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            kept = _read_kept(there)
            _check(path, kept, definition, resumes)
            chosen = definition or kept
            assert chosen is not None
            _write(path / CONFIG, chosen.toml)
            if kept is None:
                _write(there, chosen.as_text())
            yield SweepFolder(path, kept or chosen)
    except OSError as error:
        where = error.filename or path
        raise UsageError(f"{where}: the sweep cannot be kept there ({error.strerror}).") from error


def _read_kept(there: Path) -> Definition | None:
    try:
        text = there.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise UsageError(f"{there}: is damaged ({error}). Move it away.") from error
    return read_definition(text, str(there))


def _check(
    path: Path, kept: Definition | None, definition: Definition | None, resumes: bool
) -> None:
    if kept is None:
        begun = (CONFIG,)  # by a sweep that was killed before its definition was whole
        others = [
            file.name for file in path.iterdir() if file.name[0] != "." and file.name not in begun
        ]
        if others:
            raise UsageError(
                f"{path}: is not empty and holds no sweep ({min(others)}). Give another --out."
            )
        return
    if not resumes:
        raise UsageError(
            f"{path}: holds a sweep of {len(kept.points)} runs. Go on with it by --resume, or give "
            "another --out."
        )
    if definition is not None and (text := difference(kept, definition)):
        raise UsageError(f"{path}: holds another sweep. Give another --out.\n{text}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    # Closed on exec: a lock that a run inherited would outlive us with it.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(path / LOCK, flags, 0o666)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{path}: another sweep goes on there. Give another --out.") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        with suppress(OSError):
            os.close(file)


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _write(path: Path, text: str) -> None:
    write_atomically(str(path), text.encode("utf-8"))

"""log.jsonl: one JSON object per line, flushed; it survives kills and continues on resume.

    {"kind": "run", "schema_version": 1, "config": ..., "versions": ..., "units": ..., ...}
    {"step": 0, "unix_s": 1767225600.0, "train/loss": 10.8, ...}
    {"kind": "resumed", "step": 400, "config": ..., "versions": ...}

The first line is the header of the run. A resumed run adds a line that invalidates the records of
its step and later ones, which are repeated. NaN and inf are strings, see `log.as_json`. A line is
one write: it survives the process, but not a power loss.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from torchtally.checkpoints.disk import lock_handle
from torchtally.checkpoints.plain import as_json, from_json
from torchtally.errors import UsageError
from torchtally.train.logs.log import SCHEMA_VERSION, LogValue, RunHeader
from torchtally.train.logs.names import units

NAME = "log.jsonl"
BEGINNING = b'{"kind": "run"'
"""Of the first line: a file without a whole line that begins otherwise is not ours."""


@dataclass(frozen=True, slots=True)
class LogContents:
    """The contents of a log, without records invalidated by resuming."""

    run: Mapping[str, Any]
    """The first line."""
    records: tuple[tuple[int, Mapping[str, LogValue]], ...]
    """(step, values), in writing order."""

    def series(self, name: str) -> tuple[tuple[int, float], ...]:
        """(step, value) of all records with a number under this name."""
        logged_values = ((step, values.get(name)) for step, values in self.records)
        return tuple(
            (step, float(value)) for step, value in logged_values if isinstance(value, int | float)
        )


class JsonLines:
    """Writes FOLDER/log.jsonl, locked for one process; call `begin` first.

    Opening raises UsageError if the file cannot be written, is locked by another process, or holds
    a run that is neither resumed nor replaced. `write` raises OSError and leaves the file
    unchanged: the next write may succeed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        resumed_at: int | None = None,
        replaces: bool = False,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = folder / NAME
        self._resumed_at = resumed_at
        self._clock = clock
        self._file = _open_log(self.path)
        try:
            content = os.pread(self._file, os.fstat(self._file).st_size, 0)
            self._end_bytes = content.rfind(b"\n") + 1
            torn_bytes = len(content) - self._end_bytes
            self._check_past(content.partition(b"\n")[0], replaces)
            if replaces and resumed_at is None:
                self._end_bytes = 0
            os.ftruncate(self._file, self._end_bytes)
            if torn_bytes and self._end_bytes:
                say(
                    f"{self.path}: removed the last {torn_bytes} bytes, an incomplete record of "
                    "the interrupted run."
                )
        except BaseException:
            self.close()
            raise

    def _check_past(self, first: bytes, replaces: bool) -> None:
        """Raise UsageError for a file that must not be continued, by its first line."""
        if not self._end_bytes:
            if not (BEGINNING.startswith(first) or first.startswith(BEGINNING)):
                raise UsageError(f"{self.path}: not the log of a training run. Move it away.")
            return
        _check_header(self.path, first)
        if self._resumed_at is None and not replaces:
            raise UsageError(
                f"{self.path}: is the log of another run. Resume that run, or use another folder."
            )

    def begin(self, header: RunHeader) -> None:
        """Write the header line, or the line of a resumed run."""
        if self._end_bytes:
            self._put({"kind": "resumed", "step": self._resumed_at, **header.as_json()})
            return
        schema = {"kind": "run", "schema_version": SCHEMA_VERSION}
        self._put({**schema, "unix_s": self._clock(), **header.as_json(), "units": units()})

    def write(self, step: int, values: Mapping[str, LogValue]) -> None:
        self._put({"step": step, "unix_s": round(self._clock(), 3), **values})

    def close(self) -> None:
        """Close and unlock the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _put(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(as_json(record), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError:
            os.ftruncate(self._file, self._end_bytes)
            raise
        self._end_bytes += len(line)


def read_log(path: str | Path) -> LogContents:
    """Read a log.jsonl, or the one in a folder. An incomplete last line is ignored.

    Raises UsageError naming the line if it is not a log.
    """
    path = Path(path)
    path = path / NAME if path.is_dir() else path
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).") from error
    run = _check_header(path, lines[0] if lines else b"")
    records: list[tuple[int, Mapping[str, LogValue]]] = []
    for number, line in enumerate(lines[1:], 2):
        record = parse_record(line)
        step = None if record is None else record.pop("step", None)
        if record is None or not isinstance(step, int):
            raise UsageError(f"{path}:{number}: not a record of a log. Is the file damaged?")
        if record.get("kind") == "resumed":
            records = [record for record in records if record[0] < step]
        else:
            record.pop("unix_s", None)
            records.append((step, {name: from_json(value) for name, value in record.items()}))
    return LogContents(run, tuple(records))


def _open_log(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, flags, 0o666)
    except OSError as error:
        raise UsageError(f"{path}: the log cannot be written ({error.strerror}).") from error
    if not lock_handle(file):
        os.close(file)
        raise UsageError(f"{path}: another run is writing there. Use another folder.")
    return file


def _check_header(path: Path, line: bytes) -> dict[str, Any]:
    """The header of a run. Raises UsageError for anything else, or a newer schema."""
    header = parse_record(line)
    if header is None or header.get("kind") != "run":
        raise UsageError(f"{path}:1: not the log of a training run.")
    schema = header.get("schema_version")
    if not isinstance(schema, int) or schema > SCHEMA_VERSION:
        raise UsageError(
            f"{path}:1: schema version {schema}; this torchtally reads {SCHEMA_VERSION}. Use a "
            "newer one."
        )
    return header


def parse_record(line: bytes) -> dict[str, Any] | None:
    """A line of a log; None for anything else."""
    try:
        record: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    except (ValueError, RecursionError):
        return None
    return record

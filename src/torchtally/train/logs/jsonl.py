"""log.jsonl: one JSON object a line, flushed, which survives being killed and goes on when resumed.

    {"kind": "run", "schema_version": 1, "config": ..., "versions": ..., "units": ..., ...}
    {"step": 0, "unix_s": 1767225600.0, "train/loss": 10.8, ...}
    {"kind": "resumed", "step": 400, "config": ..., "versions": ...}

The first line is the run's. A resumed run adds a line of its own, which takes back what was logged
for its step and later ones: those steps are done again. Values keep the order they came in; NaN and
infinities are strings, see `log.as_json`. A line is one write to the file: it outlives the process
from then on, not a loss of power.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtally.errors import UsageError
from torchtally.train.logs.log import SCHEMA_VERSION, LogValue, RunHeader, as_json, from_json
from torchtally.train.logs.names import units

NAME = "log.jsonl"
BEGINNING = b'{"kind": "run"'
"""Of the first line: what else has no whole line is not ours, and is not cut."""
BLOCK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class LogContents:
    """A log as it was read: what holds after all resuming."""

    run: Mapping[str, Any]
    """The first line."""
    records: tuple[tuple[int, Mapping[str, LogValue]], ...]
    """(step, values), in the order of writing."""

    def series(self, name: str) -> tuple[tuple[int, float], ...]:
        """(step, value) of all records that have a number under this name."""
        logged_values = ((step, values.get(name)) for step, values in self.records)
        return tuple(
            (step, float(value)) for step, value in logged_values if isinstance(value, int | float)
        )


class JsonLines:
    """A log in FOLDER/log.jsonl, for one process at a time.

    Opened, then begun with `begin`. Opening raises UsageError if the file cannot be written, if
    another process writes it, or if it holds a run that is neither resumed nor replaced. `write`
    raises OSError, and leaves the file as it was before: the next one may succeed.
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
            self._end_bytes = _end_of_lines(self._file)
            torn_bytes = os.fstat(self._file).st_size - self._end_bytes
            self._check_past(replaces)
            if replaces and resumed_at is None:
                self._end_bytes = 0
            os.ftruncate(self._file, self._end_bytes)
            if torn_bytes and self._end_bytes:
                say(
                    f"{self.path}: the last {torn_bytes} bytes are a record that was cut short "
                    "when the run ended; they are removed."
                )
        except BaseException:
            self.close()
            raise

    def _check_past(self, replaces: bool) -> None:
        """Raise UsageError for a file that is not to be continued."""
        first = _first_line(self._file)
        if not self._end_bytes:
            if not (BEGINNING.startswith(first) or first.startswith(BEGINNING)):
                raise UsageError(f"{self.path}: not the log of a training run. Move it away.")
            return
        _check_header(self.path, first)
        if self._resumed_at is None and not replaces:
            raise UsageError(
                f"{self.path}: the log of another run. Resume that run, or give this one a folder "
                "of its own."
            )

    def begin(self, header: RunHeader) -> None:
        """The run's own line, or that of its resuming."""
        if self._end_bytes:
            self._put({"kind": "resumed", "step": self._resumed_at, **header.as_json()})
            return
        schema = {"kind": "run", "schema_version": SCHEMA_VERSION}
        self._put({**schema, "unix_s": self._clock(), **header.as_json(), "units": units()})

    def write(self, step: int, values: Mapping[str, LogValue]) -> None:
        self._put({"step": step, "unix_s": round(self._clock(), 3), **values})

    def close(self) -> None:
        """Also gives the file free for other processes."""
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
    """A log.jsonl, or that of a folder. A last line that was cut short is left out.

    Raises UsageError for a file that is none, naming the line.
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
        record = _object(line)
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
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise UsageError(f"{path}: another run writes there. Give this one a folder.") from None
    except OSError:
        pass  # a file system without locks
    return file


def _end_of_lines(file: int) -> int:
    """Where the last whole line ends, in bytes."""
    end = os.fstat(file).st_size
    while end > 0:
        start = max(end - BLOCK_BYTES, 0)
        place = os.pread(file, end - start, start).rfind(b"\n")
        if place >= 0:
            return start + place + 1
        end = start
    return 0


def _first_line(file: int) -> bytes:
    content, at = b"", 0
    while b"\n" not in content and (block := os.pread(file, BLOCK_BYTES, at)):
        content, at = content + block, at + len(block)
    return content.partition(b"\n")[0]


def _check_header(path: Path, line: bytes) -> dict[str, Any]:
    """The run's line. Raises UsageError for anything else, or a schema yet to come."""
    header = _object(line)
    if header is None or header.get("kind") != "run":
        raise UsageError(f"{path}:1: not the log of a training run.")
    schema = header.get("schema_version")
    if not isinstance(schema, int) or schema > SCHEMA_VERSION:
        raise UsageError(
            f"{path}:1: schema version {schema}; this torchtally knows {SCHEMA_VERSION}. Use a "
            "newer one."
        )
    return header


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None

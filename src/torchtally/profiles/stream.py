"""The events of a JSON trace, chunk by chunk: a file of any size in bounded memory.

A trace is an object with a list "traceEvents", or the bare list. Its events are decoded some
megabytes at a time. Where a chunk may be cut is not searched with a parser of our own: a prefix of
the list that ends in "}" before a comma, and that is valid JSON in brackets, ends between events.
"""

import gzip
import os
import re
import zlib
from collections.abc import Iterator
from typing import IO, Any, Generic, TypeVar, cast

import msgspec

from torchtally.errors import TraceFileError
from torchtally.files.reading import open_at_once
from torchtally.trace.file import MAGIC

CHUNK_BYTES = 8 << 20
MOST_HEAD_BYTES = 64 << 20
"""Before the events: more is none of a profiler's."""
MOST_EVENT_BYTES = 64 << 20
MOST_CUTS = 40
"""Places that are tried in one chunk."""

EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
SEPARATOR = re.compile(rb"\}\s*,")
BLANK = b" \t\r\n"

E = TypeVar("E")
H = TypeVar("H")


class TraceStream(Generic[E, H]):
    """Events of type `E`, and what stands around them as `H`, of which all fields have defaults.

    `heads` has what stands before the events once the first chunk was given, and what stands behind
    them once the last was.
    """

    def __init__(self, path: str, event: type[E], head: type[H]) -> None:
        self.path = path
        self.heads: list[H] = []
        self.bytes = 0
        """Read so far, decompressed."""
        self.share = 0.0
        """Of the file, read so far."""
        self.unreadable = 0
        """Events of another form than `E`."""
        self._event = event
        self._events = msgspec.json.Decoder(list[event], strict=False)  # type: ignore[valid-type]
        self._raw = msgspec.json.Decoder(list[msgspec.Raw])
        self._head = msgspec.json.Decoder(head, strict=False)

    def chunks(self) -> Iterator[list[E]]:
        """Raises TraceFileError for a file that cannot be read, or is no whole trace."""
        try:
            with _open(self.path) as file:
                size = max(1, os.fstat(file.fileno()).st_size)
                raw = file.fileobj if isinstance(file, gzip.GzipFile) else file
                for events in self._chunks(file):
                    # Of a pipe neither size nor place is known.
                    self.share = min(1.0, raw.tell() / size) if raw.seekable() else 0.0
                    yield events
        except FileNotFoundError:
            raise TraceFileError(f"{self.path}: no such file.") from None
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise TraceFileError(
                f"{self.path}: cannot be decompressed ({error}).\n"
                "The file is damaged or cut short: copy it again."
            ) from None
        except IsADirectoryError:
            raise TraceFileError(
                f"{self.path}: a folder.\nName the trace files in it: {self.path}/*.json.gz"
            ) from None
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise TraceFileError(f"{self.path}: cannot be read ({why or error}).") from error

    def _chunks(self, file: IO[bytes]) -> Iterator[list[E]]:
        rest, is_list = self._after_head(file)
        size = CHUNK_BYTES
        while True:
            more = self._read(file, size)
            rest += more
            if not more:
                yield self._last(rest, is_list)
                return
            cut = self._cut(rest)
            if cut is None:
                if len(rest) > MOST_EVENT_BYTES:
                    raise self._damage_error(f"no event ends within {MOST_EVENT_BYTES >> 20} MiB")
                continue
            events, end = cut
            yield events
            rest = rest[end:].lstrip(BLANK)[1:]

    def _read(self, file: IO[bytes], size: int) -> bytes:
        piece = file.read(size)
        self.bytes += len(piece)
        return piece

    def _after_head(self, file: IO[bytes]) -> tuple[bytes, bool]:
        """What follows the bracket that opens the events; whether the whole file is that list."""
        buffer = self._read(file, CHUNK_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip(BLANK)
        if not buffer:
            raise TraceFileError(
                f"{self.path}: empty.\nThe profiler writes its file on exit: did the run get there?"
            )
        if buffer.startswith(b"["):
            return buffer[1:], True
        if buffer.startswith(MAGIC):
            raise TraceFileError(
                f"{self.path}: a trace of torchtally, not of a profiler.\n"
                f"`tally show {self.path}` opens it; `tally diff` compares two."
            )
        if not buffer.startswith(b"{"):
            raise TraceFileError(
                f"{self.path}: not a profiler's trace: it is not JSON.\n"
                "A trace is what `prof.export_chrome_trace(FILE)` writes."
            )
        start = 0
        while True:
            for match in EVENTS.finditer(buffer, start):
                head = buffer[: match.start()] + b'"traceEvents":[]}'
                if self._keep_head(head):
                    return buffer[match.end() :], False
            start = max(0, len(buffer) - 64)
            more = self._read(file, CHUNK_BYTES) if len(buffer) < MOST_HEAD_BYTES else b""
            if not more:
                raise TraceFileError(
                    f'{self.path}: not a profiler\'s trace: it has no "traceEvents".\n'
                    "A trace is what `prof.export_chrome_trace(FILE)` writes."
                )
            buffer += more

    def _keep_head(self, document: bytes) -> bool:
        try:
            self.heads.append(self._head.decode(document))
        except msgspec.ValidationError as error:
            raise self._damage_error(f"before its events: {error}") from None
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    def _cut(self, buffer: bytes) -> tuple[list[E], int] | None:
        """The events up to the last place between two of them, and that place."""
        end = len(buffer)
        for _ in range(MOST_CUTS):
            end = buffer.rfind(b"}", 0, end)
            while end >= 0 and SEPARATOR.match(buffer, end) is None:
                end = buffer.rfind(b"}", 0, end)
            if end < 0:
                return None
            try:
                return self._decode(b"[" + buffer[: end + 1] + b"]"), end + 1
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                continue
        return None

    def _decode(self, document: bytes) -> list[E]:
        try:
            return self._events.decode(document)
        except msgspec.ValidationError:
            return list(self._readable(document))

    def _readable(self, document: bytes) -> Iterator[E]:
        decoder = msgspec.json.Decoder(self._event, strict=False)
        for raw in self._raw.decode(document):
            try:
                yield decoder.decode(raw)
            except (msgspec.ValidationError, RecursionError):
                self.unreadable += 1

    def _last(self, rest: bytes, is_list: bool) -> list[E]:
        """The events that are left, and what follows them."""
        if is_list:
            # Chrome's format allows the closing bracket to be missing.
            body = rest.rstrip(BLANK).removesuffix(b"]").rstrip(BLANK).removesuffix(b",")
            try:
                return self._decode(b"[" + body + b"]")
            except (msgspec.DecodeError, RecursionError) as error:
                raise self._damage_error(str(error)) from None
        document = b'{"traceEvents":[' + rest
        try:
            tail: Any = msgspec.json.decode(document, type=Tail)
            events = self._decode(bytes(tail.events))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise self._damage_error(str(error)) from None
        self._keep_head(document)
        return events

    def _damage_error(self, why: str) -> TraceFileError:
        return TraceFileError(
            f"{self.path}: the trace is damaged or cut short, at byte {self.bytes} ({why}).\n"
            "Copy it again, or record it again."
        )


class Tail(msgspec.Struct):
    events: msgspec.Raw = msgspec.field(name="traceEvents")


def _open(path: str) -> IO[bytes]:
    file = open(path, "rb", opener=open_at_once)  # noqa: SIM115
    if os.path.isdir(path):
        raise IsADirectoryError
    is_packed = file.peek(2)[:2] == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(file) if is_packed else file)

r"""The file of a trace: one line of text, then a compressed body.

    torchtally trace format=15 packed=48211 body=812345 blake2b=5f1d...\n
    <zlib of the msgpack that `Trace.save` makes>

The line gives the sizes and a digest of the body: a file cut short or changed by a single byte is
refused, never half read. A file from elsewhere is not trusted: sizes are bounded before memory is
given to them, and so is what the body takes once decoded (`decoding.py`); types and bounds are
checked by msgspec, every number that refers to a table is checked to lie in it (`checks.py`), and
nothing read is ever imported or run.
"""

import gc
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import msgspec

from torchtally.errors import OutputError, TraceFileError
from torchtally.files.atomic import write_atomically
from torchtally.files.reading import open_at_once
from torchtally.trace.checks import InvalidTraceError
from torchtally.trace.decoding import WORD, allowed_bytes, decoded_bytes_at_most, machine_bytes

FORMAT = 15
"""Raised whenever what a body may hold changes, a new kind of effect among it: `tests/trace/
test_file.py` has a digest of its schema. An older tally then says that it is too old.
"""
MAGIC = b"torchtally trace "
HEADER = re.compile(
    rb"torchtally trace format=([0-9]{1,6}) packed=([0-9]{1,12}) body=([0-9]{1,12})"
    rb" blake2b=([0-9a-f]{32})\n"
)
HEADER_LIMIT_BYTES = 200
BODY_LIMIT_BYTES = 1 << 30
"""About 30 million operators; more is refused, so that a small file cannot ask for all memory."""

Path = str | os.PathLike[str]


def write_body(body: bytes, path: Path) -> None:
    """Write a body to `path`, whole or not at all: an older file there stays until then.

    Raises TraceFileError when the body is too large, and OutputError when the file cannot be
    written.
    """
    name = os.fspath(path)
    if len(body) > BODY_LIMIT_BYTES:
        raise TraceFileError(
            f"{name}: the trace has more operators than fit into a file "
            f"({len(body)} bytes, the limit is {BODY_LIMIT_BYTES}).\n"
            "Trace fewer steps: --steps 2."
        )
    packed = zlib.compress(body, 1)
    if _is_too_dense(body, len(packed)):
        packed = zlib.compress(body, 0)  # of a size that a reader believes
    header = _header(FORMAT, len(packed), len(body), _digest(packed))
    try:
        write_atomically(name, header, packed)
    except OSError as error:
        raise OutputError(
            f"{name}: the trace could not be written ({error.strerror or error}).\n"
            "Choose another place with -o FILE."
        ) from error


def _header(version: int, packed_bytes: int, body_bytes: int, digest: bytes) -> bytes:
    sizes = b"format=%d packed=%d body=%d" % (version, packed_bytes, body_bytes)
    return MAGIC + sizes + b" blake2b=" + digest + b"\n"


def _digest(packed: bytes) -> bytes:
    return blake2b(packed, digest_size=16).hexdigest().encode()


def read_body(path: Path) -> bytes:
    """The body of a file. Raises TraceFileError unless the file is a whole trace."""
    name = os.fspath(path)
    try:
        with open(name, "rb", opener=open_at_once) as stream:
            header = stream.readline(HEADER_LIMIT_BYTES)
            packed_bytes, body_bytes, digest = _parse_header(name, header)
            packed = stream.read(packed_bytes + 1)
    except FileNotFoundError:
        raise TraceFileError(
            f"{name}: no such file.\nRecord one with: tally run SCRIPT --gpu NAME -o {name}"
        ) from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise TraceFileError(f"{name}: cannot be read ({why or error}).") from error
    if len(packed) < packed_bytes:
        raise _cut_short(name, f"it has {len(packed)} of {packed_bytes} bytes")
    if len(packed) > packed_bytes:
        raise _corruption(name, "it is longer than its first line says")
    if _digest(packed) != digest:
        raise _corruption(name, "its checksum does not match")
    body = _decompress(name, packed, body_bytes)
    _check_cost(name, body, packed_bytes)
    return body


def _too_dense(packed_bytes: int) -> str:
    return f"its {packed_bytes} bytes would take far more memory than those of a trace"


def _is_too_dense(body: bytes, packed_bytes: int) -> bool:
    return decoded_bytes_at_most(body) > allowed_bytes(packed_bytes)


def _check_cost(name: str, body: bytes, packed_bytes: int) -> None:
    """Raises TraceFileError where decoding could take more memory than the file is worth."""
    if _is_too_dense(body, packed_bytes):
        raise _corruption(name, _too_dense(packed_bytes))
    needed_bytes, memory_bytes = decoded_bytes_at_most(body), machine_bytes()
    if needed_bytes > memory_bytes:
        raise TraceFileError(
            f"{name}: reading it may take {needed_bytes >> 20} MiB of memory, and this machine has "
            f"{memory_bytes >> 20} MiB.\nRead it on a larger one, or trace fewer steps: --steps 2."
        )


def _parse_header(name: str, header: bytes) -> tuple[int, int, bytes]:
    """Packed bytes, bytes of the body, digest. Raises TraceFileError for anything unexpected."""
    if not header.startswith(MAGIC):
        if MAGIC.startswith(header):
            raise _cut_short(name, f"it has only {len(header)} bytes")
        raise TraceFileError(
            f"{name}: not a trace of torchtally.\n"
            "A trace is what `tally run SCRIPT -o FILE` writes, and begins with 'torchtally trace'."
        )
    version = re.match(rb"format=([0-9]{1,6}) ", header[len(MAGIC) :])
    if version is not None:
        _check_version(name, int(version[1]))
    match = HEADER.fullmatch(header)
    if match is None and not header.endswith(b"\n") and len(header) < HEADER_LIMIT_BYTES:
        raise _cut_short(name, "its first line is incomplete")
    if match is None:
        raise _corruption(name, "its first line is damaged")
    packed_bytes, body_bytes = int(match[2]), int(match[3])
    if header != _header(FORMAT, packed_bytes, body_bytes, match[4]):
        raise _corruption(name, "its first line is damaged")
    if max(packed_bytes, body_bytes) > BODY_LIMIT_BYTES:
        raise _corruption(name, f"it claims to hold more than {BODY_LIMIT_BYTES >> 20} MiB")
    if body_bytes * WORD > allowed_bytes(packed_bytes):
        raise _corruption(name, _too_dense(packed_bytes))
    return packed_bytes, body_bytes, match[4]


def _check_version(name: str, version: int) -> None:
    if version > FORMAT:
        raise TraceFileError(
            f"{name}: written by a newer torchtally (format {version}, this one reads "
            f"{FORMAT}).\n"
            "Upgrade: pip install --upgrade torchtally"
        )
    if version < FORMAT:
        raise TraceFileError(
            f"{name}: format {version} is too old; this torchtally reads format {FORMAT}.\n"
            "Record the trace again with `tally run`."
        )


def _decompress(name: str, packed: bytes, body_bytes: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        body = stream.decompress(packed, body_bytes + 1)
    except zlib.error:
        raise _corruption(name, "it cannot be decompressed") from None
    if len(body) != body_bytes or not stream.eof or stream.unused_data:
        raise _corruption(name, "its size is not the one it claims")
    return body


def _cut_short(name: str, what: str) -> TraceFileError:
    return TraceFileError(
        f"{name}: the trace is cut short: {what}.\n"
        "Copy it again, or make it again with `tally run`."
    )


def _corruption(name: str, why: str) -> TraceFileError:
    return TraceFileError(
        f"{name}: the trace is corrupted: {why}.\nCopy it again, or make it again with `tally run`."
    )


@contextmanager
def refuse_as_corrupted(path: Path) -> Iterator[None]:
    """Decoding and checking a body: whatever is wrong with it becomes one TraceFileError."""
    try:
        yield
    except (msgspec.MsgspecError, InvalidTraceError, UnicodeError, RecursionError) as error:
        raise _corruption(os.fspath(path), str(error)) from None


@contextmanager
def collection_paused() -> Iterator[None]:
    """Keep the garbage collector from walking a million new records, none of which is garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

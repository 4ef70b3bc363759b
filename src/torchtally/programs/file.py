r"""The file of programs: one line of text, then a compressed body.

    torchtally programs format=1 blake2b=5f1d...\n
    <lzma of msgpack>

A file cut short or changed by a byte is refused, and nothing read is ever imported or run.
"""

import lzma
import os
import re
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import msgspec

from torchtally.errors import ProgramError
from torchtally.files.atomic import write_atomically

FORMAT = 1
HEADER = re.compile(rb"torchtally programs format=([0-9]{1,6}) blake2b=([0-9a-f]{32})\n")
BODY_LIMIT_BYTES = 64 << 20
"""Some thousand programs; more is refused, so that a small file cannot ask for all memory."""
Contents = TypeVar("Contents", bound=msgspec.Struct)


def save_programs(contents: msgspec.Struct, path: Path) -> None:
    """Write a record of packed programs, whole or not at all. Raises OSError where it cannot."""
    body = lzma.compress(msgspec.msgpack.encode(contents), preset=9 | lzma.PRESET_EXTREME)
    header = b"torchtally programs format=%d blake2b=%s\n" % (FORMAT, digest(body))
    write_atomically(os.fspath(path), header, body)


def load_programs(path: Path, kind: type[Contents]) -> Contents:
    """The record in a file. Raises ProgramError unless it is whole and of this format."""
    try:
        header, newline, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise ProgramError(f"{path}: cannot be read ({error.strerror or error}).") from error
    match = HEADER.fullmatch(header + newline)
    if match is None:
        raise ProgramError(f"{path}: not a file of torchtally's programs, or cut short.")
    if int(match[1]) != FORMAT:
        raise ProgramError(
            f"{path}: programs of format {int(match[1])}, this torchtally reads {FORMAT}.\n"
            "Remove the file, or install the torchtally that it came with."
        )
    if match[2] != digest(body):
        raise ProgramError(f"{path}: damaged, its checksum does not match.\nRemove the file.")
    return decoded(path, body, kind)


def decoded(path: Path, body: bytes, kind: type[Contents]) -> Contents:
    decompressor = lzma.LZMADecompressor()
    try:
        plain = decompressor.decompress(body, BODY_LIMIT_BYTES)
        if not decompressor.eof:
            raise ValueError(f"more than {BODY_LIMIT_BYTES >> 20} MiB")
        return msgspec.msgpack.decode(plain, type=kind)
    except (lzma.LZMAError, EOFError, ValueError) as error:  # msgspec's are ValueErrors
        raise ProgramError(f"{path}: damaged ({error}).\nRemove the file.") from error


def digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).hexdigest().encode()

"""Options that name a file to be written: it can be, and what exists and is not ours is not
replaced unasked.

A file of ours is told by its content, since any name may be a user's: `-o model.pt`.
"""

import argparse
import gzip
import os
import re
import tempfile
import zlib
from typing import Any

from torchtally.errors import UsageError
from torchtally.files.reading import open_at_once

HEAD_BYTES, TAIL_BYTES = 4096, 65_536
HEADS = re.compile(
    rb"torchtally trace "
    rb'|\{\s*"schema": ?"(?P<schema>[a-z_-]+)/\d'  # documents
    rb'|\{\s*"\$schema": "[^"]*",\s*"\$id": "urn:torchtally:'  # their schemas
    rb'|\{\s*"device": "[^"]*",\s*"kind": "(?:cpu|cuda)",\s*"torch_version": '  # calibrations
    rb'|\{[^\n]{0,200}"exporter": "torchtally"'  # for speedscope and Perfetto
    rb'|<!DOCTYPE html>\s.{0,2000}<meta name="generator" content="torchtally">'
    rb"|(?:<svg [^>]*>\s*)?<!-- torchtally -->"  # Markdown, too
    rb"|rank,step,tick,part_number,phase,",  # a table of operators
    re.DOTALL,
)
"""What files of ours begin with."""
TAILED = (b"PAR1", b"\x80\x04")
"""Parquet and pickles name us at the end."""


def add_output(
    parser: argparse.ArgumentParser,
    *flags: str,
    group: Any = None,
    makes_folder: bool = False,
    **how: Any,
) -> None:
    """Add an option that names a file to be written, to a group of the parser where one is given,
    and --replace beside the first of them. `makes_folder`: the command makes what it lies in, or
    writes a folder.
    """
    action = (group or parser).add_argument(*flags, **how)
    outputs = parser.get_default("outputs") or {}
    if not outputs:
        parser.add_argument(
            "--replace",
            action="store_true",
            help="overwrite a file that exists, though tally did not write it",
        )
    parser.set_defaults(outputs={**outputs, action.dest: (flags[0], makes_folder)})


def check_outputs(args: argparse.Namespace) -> None:
    """Raises UsageError where an option names a file that cannot be written, or is not ours."""
    for name, (option, makes_folder) in getattr(args, "outputs", {}).items():
        path = getattr(args, name, None)
        if not makes_folder:
            place_of(path, option)
        check_output(path, option, replaces=args.replace)


def check_output(path: str | None, option: str, *, replaces: bool) -> None:
    """Raises UsageError where a file exists and is not ours."""
    if path is None or path == "-" or replaces or not os.path.isfile(path) or is_ours(path):
        return
    raise UsageError(
        f"{path}: exists, and nothing in it says that tally wrote it.\n"
        f"Choose another place with {option}, or add --replace to overwrite it."
    )


def place_of(path: str | None, option: str) -> Any:
    """The absolute path, once it is known that a file can be written there."""
    if path is None or path == "-":
        return path
    absolute = os.path.abspath(path)
    reason = why_not_writable(absolute)
    if reason:
        raise UsageError(
            f"{path}: cannot be written, {reason}.\nChoose another with {option} FILE."
        )
    return absolute


def why_not_writable(path: str) -> str:
    """Why no file can be written there, by trying; "" where it can."""
    directory = os.path.dirname(path)
    if os.path.isdir(path):
        return "it is a directory"
    if not os.path.isdir(directory):
        return f"there is no directory {directory}"
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            open(path, "ab").close()  # a device or a pipe
        else:
            tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        return str(error.strerror or error)
    return ""


def is_ours(path: str) -> bool:
    """Whether tally wrote the file. Nothing is lost with an empty one, either."""
    try:
        with open(path, "rb", opener=open_at_once) as file:
            head = file.read(HEAD_BYTES)
            if head.startswith(TAILED):
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
                return b"torchtally" in file.read(TAIL_BYTES)
        if head.startswith(b"\x1f\x8b"):
            with gzip.open(path) as packed:
                head = packed.read(HEAD_BYTES)
    except (OSError, EOFError, zlib.error):
        return False
    found = HEADS.match(head)
    if found is None:
        return not head
    from torchtally.report.documents import documents

    return found["schema"] is None or found["schema"].decode() in documents()

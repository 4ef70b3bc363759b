"""`tally schema`: what the documents for programs hold, as JSON Schema and in words."""

import argparse
import os

from torchtally.cli.arguments import Subparsers
from torchtally.cli.destination import check_output
from torchtally.cli.output import add_format, emit, write_bytes, write_report
from torchtally.options import one_of

NAME = "schema"
SUMMARY = "what the JSON documents hold: keys, units, JSON Schema"

EPILOG = """\
examples:
  tally schema                        every kind of document, and what prints it
  tally schema run                    the JSON Schema (draft 2020-12) of `tally run --json`
  tally schema view --fields          its keys, with units, in words
  tally schema --vocabulary           every key of every document: one name for one thing
  tally schema --out schemas          all schemas, as files schemas/run.json, ...

Each document names its schema first: "schema": "run/1". A key that is removed
or changes its meaning raises the number; a new one does not.
"""


def document_names() -> "list[str]":
    from torchtally.report.documents import documents

    return list(documents())


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Show what the documents hold that --json and --format json print.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "name", nargs="?", type=one_of(document_names), metavar="NAME",
        help="its JSON Schema",
    )  # fmt: skip
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--fields", action="store_true", help="with NAME: its keys as a table")
    which.add_argument(
        "--vocabulary",
        action="store_true",
        help="print every key and column, with unit and meaning",
    )
    which.add_argument("--out", metavar="DIR", help="write all schemas to files of this folder")
    add_format(parser)
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Print one, or the list of them. Raises UsageError for options that contradict a name."""
    from torchtally.errors import UsageError
    from torchtally.report import schema
    from torchtally.report.report import table_report

    if args.fields and args.name is None:
        raise UsageError("--fields needs a document: tally schema run --fields")
    if args.name is not None and (args.vocabulary or args.out):
        raise UsageError("--vocabulary and --out cover all documents: leave out the name.")
    if args.out is not None:
        return _write_all(args)
    if args.name is not None and not args.fields:
        emit(schema.schema_text(args.name))
        return 0
    if args.name is not None:
        table = schema.fields_table(args.name)
    else:
        table = schema.vocabulary_table() if args.vocabulary else schema.documents_table()
    write_report(table_report(table), args)
    return 0


def _write_all(args: argparse.Namespace) -> int:
    """A file for each. Raises UsageError where the folder cannot be made, or has other files."""
    from torchtally.errors import UsageError
    from torchtally.report.schema import schema_text

    try:
        os.makedirs(args.out, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{args.out}: cannot be created ({error.strerror}).") from error
    places = {name: os.path.join(args.out, f"{name}.json") for name in document_names()}
    for place in places.values():
        check_output(place, "--out DIR", args)
    for name, place in places.items():
        write_bytes(schema_text(name).encode(), place)
    return 0

"""`tally schema`: what the documents for programs hold, as JSON Schema and in words."""

import os
from dataclasses import dataclass

from torchtally.cli.destination import check_output
from torchtally.cli.output import ReportOptions, emit, write_bytes, write_report
from torchtally.errors import UsageError
from torchtally.options import Form, one_of, own

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


@dataclass(frozen=True, kw_only=True)
class SchemaOptions(ReportOptions):
    """Show what the documents hold that --json and --format json print."""

    name: str | None = own(
        "NAME", "its JSON Schema", Form("NAME", one_of(document_names)), nargs="?"
    )
    fields: bool = own("--fields", "with NAME: its keys as a table")
    vocabulary: bool = own("--vocabulary", "print every key and column, with unit and meaning")
    out: str | None = own("--out", "write all schemas to files of this folder", Form("DIR"))
    replace: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fields + self.vocabulary + (self.out is not None) > 1:
            raise UsageError("--fields, --vocabulary and --out: give one of them.")


def command(options: SchemaOptions) -> int:
    """Print one, or the list of them. Raises UsageError for options that contradict a name."""
    from torchtally.report import schema
    from torchtally.report.report import table_report

    if options.fields and options.name is None:
        raise UsageError("--fields needs a document: tally schema run --fields")
    if options.name is not None and (options.vocabulary or options.out):
        raise UsageError("--vocabulary and --out cover all documents: leave out the name.")
    if options.out is not None:
        return _write_all(options.out, replaces=options.replace)
    if options.name is not None and not options.fields:
        emit(schema.schema_text(options.name))
        return 0
    if options.name is not None:
        table = schema.fields_table(options.name)
    else:
        table = schema.vocabulary_table() if options.vocabulary else schema.documents_table()
    write_report(table_report(table), options)
    return 0


def _write_all(folder: str, *, replaces: bool) -> int:
    """A file for each. Raises UsageError where the folder cannot be made, or has other files."""
    from torchtally.report.schema import schema_text

    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be created ({error.strerror}).") from error
    places = {name: os.path.join(folder, f"{name}.json") for name in document_names()}
    for place in places.values():
        check_output(place, "--out DIR", replaces=replaces)
    for name, place in places.items():
        write_bytes(schema_text(name).encode(), place)
    return 0

"""Destinations of reports: the terminal's width and colours, --format, and files named by the
user.
"""

import argparse
import os
import shutil
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO

from torchtally.atomic import write_atomically
from torchtally.cli.arguments import RunParser
from torchtally.cli.destination import add_output
from torchtally.cli.streams import unwritable_as_error
from torchtally.errors import OutputError, UsageError, did_you_mean
from torchtally.progress import printable_lines
from torchtally.report.formats import format_names, render

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchtally.report.filters import RowFilter
    from torchtally.report.report import Look, Report
    from torchtally.table import Table

PIPE_WIDTH = 80
LEAST_WIDTH = 40


def add_format(parser: argparse.ArgumentParser, *, has_html: bool = False) -> None:
    """Add --format and its short form --json; with `has_html` also --html FILE."""
    names = format_names()
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--format",
        choices=names,
        default="text",
        metavar="FORMAT",
        help=f"output format: {', '.join(names)} (default text)",
    )
    # Where a script's arguments follow, a FILE that may be left out would be taken for the script.
    is_optional = not isinstance(parser, RunParser)
    optional: dict[str, Any] = {"nargs": "?", "const": "-"} if is_optional else {}
    place = "or to stdout" if is_optional else "- for stdout"
    add_output(
        parser,
        "--json",
        group=either,
        metavar="FILE",
        help=f"short for --format json; to FILE, {place}",
        **optional,
    )
    if has_html:
        add_output(parser, "--html", metavar="FILE", help="a page for a browser, to FILE")


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Add --columns."""
    parser.add_argument(
        "--columns",
        metavar="A,B",
        type=column_names,
        help="only these columns of the tables that have them, however wide "
        "(flops_forward,bytes_read)",
    )


def add_filter(parser: argparse.ArgumentParser) -> None:
    """Add --filter."""
    parser.add_argument(
        "--filter",
        metavar="CONDITION",
        type=row_filter_of,
        action="append",
        default=[],
        help="only rows that satisfy it (flops>1e9, bytes_saved>=1GiB, phase=backward, "
        "line~train.py, operator!~foreach); if there are several, all of them",
    )


def row_filter_of(text: str) -> "RowFilter":
    from torchtally.report.filters import row_filter

    return row_filter(text)


def choose(table: "Table", args: argparse.Namespace) -> "Table":
    """The rows and columns that --filter, --sort, --top and --columns ask for.

    Raises UsageError for columns that the table does not have.
    """
    from torchtally.report.filters import filter_rows

    table = filter_rows(table, args.filter)
    if sort := getattr(args, "sort", None):
        table = table.sorted_by(sort)
    table = table.top(getattr(args, "top", None))
    columns = getattr(args, "columns", None)
    return table if columns is None else table.only(columns)


def column_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def check_columns(names: "Sequence[str] | None") -> None:
    """Raises UsageError for a column that no table of a run's page has."""
    if names:
        from torchtally.views.summary import page_columns

        columns = page_columns()
        for name in names:
            if not any(column.answers_to(name) for column in columns):
                known = sorted({column.name for column in columns})
                raise UsageError(f"--columns {name}: unknown. {did_you_mean(name, known)}")


def write_report(
    report: "Report", args: argparse.Namespace, *, is_beside_files: bool = False
) -> None:
    """Writes to stdout in the format asked for, or to the files named by --json and --html.

    `is_beside_files`: on stdout as well where these are given, and neither is stdout.
    """
    files = {"html": getattr(args, "html", None), "json": args.json}
    for format, place in files.items():
        if place is not None:
            write_or_emit(render(report, format, look(sys.stdout)), place)
    places = [place for place in files.values() if place is not None]
    if not places or (is_beside_files and "-" not in places):
        reports = _reports.get()
        if reports is not None and args.format == "text":
            reports.append(report)
        else:
            drawn = look(sys.stdout)
            emit(render(report, args.format, drawn), is_coloured=drawn.is_coloured)


_reports: "ContextVar[list[Report] | None]" = ContextVar("reports", default=None)


@contextmanager
def reports_collected() -> "Iterator[list[Report]]":
    """Context in which reports that would be printed as plain text are kept instead: for who shows
    them.
    """
    reports: list[Report] = []
    token = _reports.set(reports)
    try:
        yield reports
    finally:
        _reports.reset(token)


def look(stream: TextIO | None) -> "Look":
    """How a report is drawn on this stream; plainly where it is closed."""
    from torchtally.report.report import Look, is_ascii

    encoding = None if stream is None else stream.encoding
    return Look(width=width(), is_coloured=is_coloured(stream), is_ascii=is_ascii(encoding))


def width() -> int:
    """Columns of the terminal (COLUMNS where it is set); 80 where there is none."""
    return max(shutil.get_terminal_size((PIPE_WIDTH, 24)).columns, LEAST_WIDTH)


def is_coloured(stream: TextIO | None) -> bool:
    """A terminal with colours, and a user who has not declined them (no-color.org)."""
    declined = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return stream is not None and not declined and stream.isatty()


def emit(text: str, stream: TextIO | None = None, *, is_coloured: bool = False) -> None:
    """Print a report, or what else a command answers, made safe for a terminal.

    Characters that the stream's encoding lacks become question marks.

    Raises OutputError where it cannot be written, and BrokenPipeError where its reader has gone.
    """
    stream = sys.stdout if stream is None else stream
    if stream is None:
        raise OutputError("the report cannot be printed: stdout is closed.")
    encoding = stream.encoding or "utf-8"
    with unwritable_as_error():
        safe = printable_lines(text, is_coloured=is_coloured)
        stream.write(safe.encode(encoding, "replace").decode(encoding))
        stream.flush()


def write_or_emit(text: str, place: str) -> None:
    """Writes to a file, or to stdout for "-". Raises OutputError where it cannot be written."""
    if place == "-":
        emit(text)
        return
    write_bytes(text.encode("utf-8", "replace"), place)


def write_bytes(content: bytes, place: str) -> None:
    """Writes to a file, whole or not at all. Raises OutputError where it cannot be written."""
    try:
        write_atomically(place, content)
    except OSError as error:
        raise OutputError(f"{place}: cannot be written ({error.strerror}).") from error

"""Destinations of reports: the terminal's width and colours, --format, and files named by the
user.
"""

import os
import shutil
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from torchtally.cli.streams import unwritable_as_error
from torchtally.errors import OutputError, UsageError, did_you_mean
from torchtally.files.atomic import write_atomically
from torchtally.options import COUNT, FILE, Form, OptionGroup, OptionRecord, one_of, option
from torchtally.progress import printable_lines
from torchtally.report.formats import format_names, render

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torchtally.report.filters import RowFilter
    from torchtally.report.report import Look, Report
    from torchtally.table import Table

PIPE_WIDTH = 80
LEAST_WIDTH = 40


def column_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def row_filter_of(text: str) -> "RowFilter":
    from torchtally.report.filters import row_filter

    return row_filter(text)


OUTPUT = OptionGroup("output")
FORMAT = Form("FORMAT", one_of(format_names))


@dataclass(frozen=True, kw_only=True)
class ReportOptions(OptionRecord):
    """The form of a report, and where it goes."""

    format: str = option(
        "--format",
        OUTPUT,
        f"output format: {', '.join(format_names())} (default text)",
        FORMAT,
        default="text",
    )
    json: str | None = option(
        "--json",
        OUTPUT,
        "short for --format json; to FILE (- for stdout)",
        FILE,
        nargs="?",
        is_written=True,
    )

    def __post_init__(self) -> None:
        if {"format", "json"}.issubset(self.given):
            raise UsageError("--json is short for --format json: give one of them.")


@dataclass(frozen=True, kw_only=True)
class PageOptions(ReportOptions):
    """A report that can be a page for a browser, too."""

    html: str | None = option(
        "--html", OUTPUT, "a page for a browser, to FILE", FILE, is_written=True
    )


@dataclass(frozen=True, kw_only=True)
class ColumnOptions(OptionRecord):
    """The columns of a report's tables."""

    columns: tuple[str, ...] | None = option(
        "--columns",
        OUTPUT,
        "only these columns of the tables that have them, however wide (flops_forward,bytes_read)",
        Form("A,B", column_names),
    )


@dataclass(frozen=True, kw_only=True)
class FilterOptions(ColumnOptions):
    """The columns and rows of a report's tables."""

    filter: "tuple[RowFilter, ...]" = option(
        "--filter",
        OUTPUT,
        "only rows that satisfy it (flops>1e9, bytes_saved>=1GiB, phase=backward, line~train.py, "
        "operator!~foreach); if there are several, all of them",
        Form("CONDITION", row_filter_of),
        is_repeated=True,
    )


@dataclass(frozen=True, kw_only=True)
class TableOptions(FilterOptions):
    """The columns and rows of one table."""

    sort: str | None = option(
        "--sort", OUTPUT, "with --by: largest first by this column (bytes_saved)", Form("COLUMN")
    )
    top: int | None = option("--top", OUTPUT, "only the first N rows", COUNT)

    def chosen(self, table: "Table") -> "Table":
        """The rows and columns that are asked for. Raises UsageError for columns that the table
        does not have.
        """
        from torchtally.report.filters import filter_rows

        table = filter_rows(table, self.filter)
        if self.sort is not None:
            table = table.sorted_by(self.sort)
        table = table.top(self.top)
        return table if self.columns is None else table.only(self.columns)


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
    report: "Report", options: ReportOptions, *, is_beside_files: bool = False
) -> None:
    """Writes to stdout in the format asked for, or to the files named by --json and --html.

    `is_beside_files`: on stdout as well where these are given, and neither is stdout.
    """
    html = options.html if isinstance(options, PageOptions) else None
    files = {"html": html, "json": options.json}
    for format, place in files.items():
        if place is not None:
            write_or_emit(render(report, format, look(sys.stdout)), place)
    places = [place for place in files.values() if place is not None]
    if not places or (is_beside_files and "-" not in places):
        reports = _reports.get()
        if reports is not None and options.format == "text":
            reports.append(report)
        else:
            drawn = look(sys.stdout)
            emit(render(report, options.format, drawn), is_coloured=drawn.is_coloured)


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

"""Tables as comma-separated values for spreadsheets and data frames.

Numbers are plain (FLOPs, bytes, seconds), without totals. Several tables are separated by an empty
line, each below a line with its name.
"""

import csv
import io
from collections.abc import Iterator

from torchtally.progress import printable
from torchtally.report.documents.tables import cells_by_name, rows_of
from torchtally.report.report import Look, Report
from torchtally.table import Table

FORMULA = "=+-@"
"""What a formula of a spreadsheet begins with."""


def render(report: Report, look: Look) -> str:
    """Each table: a line with the names of its columns, then its rows."""
    if len(report.tables) == 1:
        return _csv(report.tables[0][1])
    return "\n".join(f"# {name}\n{_csv(table)}" for name, table in report.tables)


def _csv(table: Table) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(_lines(table))
    return stream.getvalue()


def _lines(table: Table) -> Iterator[list[str | int | float]]:
    yield list(cells_by_name(table, table.totals))
    for row in rows_of(table):
        yield [
            "" if cell is None else _text(cell) if isinstance(cell, str) else cell
            for cell in row.values()
        ]


def _text(cell: str) -> str:
    """Text behind an apostrophe where a spreadsheet would compute it: names come from strangers."""
    text = printable(cell)
    return f"'{text}" if text[1:] and text[0] in FORMULA else text

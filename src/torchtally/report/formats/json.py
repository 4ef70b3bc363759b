"""A document for programs: FLOPs, bytes and seconds as plain numbers, null for what is unknown."""

from torchtally.report.document import dumps, rows_of
from torchtally.report.report import Look, Report


def render(report: Report, look: Look) -> str:
    """The report's own document, or the rows of its tables by the names of their columns."""
    if report.document is not None:
        return dumps(report.document())
    tables = {name: rows_of(table) for name, table in report.tables}
    return dumps({"title": report.title, **tables})

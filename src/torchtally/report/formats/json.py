"""A document for programs: FLOPs, bytes and seconds as plain numbers, null for what is unknown."""

from torchtally.report.document import dumps, table_part
from torchtally.report.report import Look, Report


def render(report: Report, look: Look) -> str:
    """The report's own document, or its tables, rows by the names of their columns."""
    if report.document is not None:
        return dumps(report.schema, report.document())
    tables = {name: table_part(table) for name, table in report.tables}
    return dumps(report.schema, {"title": report.title, "tables": tables})

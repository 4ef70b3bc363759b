"""A document for programs: FLOPs, bytes and seconds as plain numbers, null for what is unknown."""

from torchtally.report.documents.tables import PageDocument, table_parts
from torchtally.report.keys import dumps, packed
from torchtally.report.report import Look, Report


def render(report: Report, look: Look) -> str:
    """The report's own document, or its tables, rows by the names of their columns."""
    if report.document is not None:
        return (packed if report.is_packed else dumps)(report.document())
    return dumps(PageDocument(report.title, table_parts(report.tables)))

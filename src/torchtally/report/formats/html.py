"""One page for a browser: drawn plots and tables, without scripts and without network."""

from torchtally.report.page import page
from torchtally.report.report import Look, Report


def render(report: Report, look: Look) -> str:
    """The title, the facts, the plots drawn and every table with all its columns."""
    tables = [table for _, table in report.tables]
    text = report.text(Look()) if report.text is not None and not tables else ""
    return page(
        report.title,
        facts=report.facts,
        plots=report.plots,
        tables=tables,
        remarks=report.remarks,
        text=text,
    )

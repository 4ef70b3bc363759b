"""The report of a sweep: its runs best first, a chart, and where to look on."""

from collections.abc import Mapping, Sequence
from typing import Any

from torchtally.report.chart import chart_text
from torchtally.report.documents.training import SweepDocument
from torchtally.report.keys import filled
from torchtally.report.prose import in_words
from torchtally.report.report import Look, Report
from torchtally.report.terminal import prose, table_text
from torchtally.table import Chart, Table

MOST_FAILURES = 3
CHART_WIDTH = 80


def sweep_report(
    table: Table,
    chart: Chart | None,
    failures: Sequence[str],
    document: Mapping[str, Any],
    folder: str,
) -> Report:
    """`failures`: a sentence for each run that failed."""

    def text(look: Look) -> str:
        text = table_text(table, width=look.width, is_coloured=look.is_coloured)
        if chart is not None:
            text += "\n" + chart_text(chart, width=min(look.width, CHART_WIDTH))
        text += "\n" + "".join(prose(failure, look.width) for failure in failures[:MOST_FAILURES])
        return f"{text}Written to {folder}: results.json, and a folder for each run.\n"

    return Report(
        title=in_words(table.title),
        tables=(("runs", table),),
        text=text,
        document=lambda: filled(SweepDocument, **document),
    )

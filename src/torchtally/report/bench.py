"""The measurement of a device: the plot, then every table."""

from torchtally.report.documents.tables import BenchDocument, table_parts
from torchtally.report.plot import plot_text
from torchtally.report.report import Look, Report
from torchtally.report.terminal import table_text
from torchtally.views.bench import BenchView

MOST_ROWS = 12
"""Of a table on a terminal; documents and pages have all of them."""


def bench_report(view: BenchView) -> Report:
    """What was measured of a device; the tables are shortened on a terminal."""

    def text(look: Look) -> str:
        width, colour = look.width, look.is_coloured
        parts = [plot_text(view.plot, width=width, is_coloured=colour, is_ascii=look.is_ascii)]
        parts += [
            table_text(table.top(MOST_ROWS), width=width, is_coloured=colour)
            for _, table in view.tables
        ]
        return "\n".join(parts)

    return Report(
        title=view.title,
        plots=(view.plot,),
        tables=view.tables,
        text=text,
        document=lambda: BenchDocument(view.title, table_parts(view.tables)),
    )

"""Plain lines for a terminal, a pipe or a log."""

from torchtally.report.report import Look, Report
from torchtally.report.terminal import prose, table_text


def render(report: Report, look: Look) -> str:
    """The report's own text, or its plots and tables one after the other."""
    if report.text is not None:
        return report.text(look)
    width, colour = look.width, look.is_coloured
    parts = []
    if not (report.plots or report.tables):
        parts += [prose(sentence, width) for sentence in (report.title, *report.facts)]
    if report.plots:
        # Not at the top: plots are drawn from views, and `tally plan` loads none.
        from torchtally.report.plot import plot_text

        parts += [
            plot_text(plot, width=width, is_coloured=colour, is_ascii=look.is_ascii)
            for plot in report.plots
        ]
    parts += [table_text(table, width=width, is_coloured=colour) for _, table in report.tables]
    separator = "\n" if report.tables or report.plots else ""
    return separator.join(parts)

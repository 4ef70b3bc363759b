"""The report of `tally budget`: what runs may take, and how that changed."""

from collections.abc import Sequence

from torchtally.gates.budget import BudgetFile
from torchtally.gates.course import budgets_table, course_chart, course_table
from torchtally.gates.history import BudgetCommit
from torchtally.report.chart import chart_text
from torchtally.report.documents.tables import BudgetDocument, table_part
from torchtally.report.report import Look, Report
from torchtally.report.terminal import table_text


def budget_report(file: BudgetFile, commits: Sequence[BudgetCommit]) -> Report:
    """All budgets, and of each the commits that changed it, with a chart."""
    runs = [(budget.run, budget.gpu) for budget in file.budgets]
    now = budgets_table(file.budgets, file.path)
    courses = [course_table(commits, *run) for run in runs] if commits else []

    def text(look: Look) -> str:
        parts = [table_text(now, width=look.width, is_coloured=look.is_coloured)]
        for run, table in zip(runs, courses, strict=False):
            if table.rows:
                parts.append(table_text(table, width=look.width, is_coloured=look.is_coloured))
            chart = course_chart(commits, *run)
            if chart is not None:
                parts.append(chart_text(chart, width=look.width))
        return "\n".join(parts)

    named = [(f"history of {table.title}", table) for table in courses if table.rows]
    return Report(
        title=f"Budgets in {file.path}",
        tables=(("budgets", now), *named),
        text=text,
        document=lambda: BudgetDocument(
            file=file.path,
            budgets=table_part(now),
            histories=[table_part(table) for _, table in named],
        ),
    )

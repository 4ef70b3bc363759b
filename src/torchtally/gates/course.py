"""Tables of budgets: as they are, and how each came to be."""

from collections.abc import Sequence

from torchtally.gates.budget import Budget
from torchtally.gates.gauges import GAUGES
from torchtally.gates.history import BudgetCommit
from torchtally.table import Cell, Chart, Column, Series, Table
from torchtally.units import Unit


def _columns(names: Sequence[str]) -> tuple[Column, ...]:
    return tuple(Column(GAUGES[name].key, name, GAUGES[name].unit) for name in names)


def _names(budgets: Sequence[Budget]) -> list[str]:
    """The quantities of any of them, in the order of the gauges."""
    return [name for name in GAUGES if any(name in budget.figures for budget in budgets)]


def budgets_table(budgets: Sequence[Budget], path: str) -> Table:
    """A row for each run of the file."""
    names = _names(budgets)
    return Table(
        title=f"Budgets in {path}",
        columns=(
            *_columns(names),
            Column("tolerance", "tolerance", Unit.WORD),
            Column("command", "run", Unit.TEXT),
            Column("chip", "GPU", Unit.TEXT),
            Column("limit", "limits", Unit.TEXT, rank=1),
        ),
        rows=tuple(
            (
                *(budget.figures.get(name) for name in names),
                budget.tolerance,
                budget.run,
                budget.gpu,
                ", ".join(budget.limits),
            )
            for budget in budgets
        ),
    )


def course_table(commits: Sequence[BudgetCommit], run: str, gpu: str) -> Table:
    """A row for each commit that changed the figures of one run, oldest first."""
    steps = _changes(commits, run, gpu)
    names = _names([budget for _, budget in steps])

    def row(commit: BudgetCommit, budget: Budget) -> tuple[Cell, ...]:
        figures = (budget.figures.get(name) for name in names)
        return commit.date, commit.commit, *figures, commit.subject

    return Table(
        title=f"{run} on {gpu}",
        columns=(
            Column("date", "date", Unit.NAME),
            Column("commit", "commit", Unit.WORD, rank=1),
            *_columns(names),
            Column("subject", "subject", Unit.TEXT),
        ),
        rows=tuple(row(*step) for step in steps),
    )


def course_chart(commits: Sequence[BudgetCommit], run: str, gpu: str) -> Chart | None:
    """Each figure over the commits, as a multiple of its first one; None where nothing changed."""
    steps = _changes(commits, run, gpu)
    if len(steps) < 2:
        return None
    letters: dict[str, Series] = {}
    for name in _names([budget for _, budget in steps]):
        points = [
            (float(number), budget.figures[name])
            for number, (_, budget) in enumerate(steps, 1)
            if name in budget.figures
        ]
        first = points[0][1]
        if first:
            letter = next(char for char in name if char.isalpha() and char not in letters)
            shares = tuple((number, figure / first) for number, figure in points)
            letters[letter] = Series(letter, shares, name, is_joined=True)
    if not letters:
        return None
    title = "Figures as multiples of the first"
    return Chart(title, "change", tuple(letters.values()), x_is_whole=True)


def _changes(
    commits: Sequence[BudgetCommit], run: str, gpu: str
) -> list[tuple[BudgetCommit, Budget]]:
    """The commits in which the figures of this run are others than in the commit before."""
    steps: list[tuple[BudgetCommit, Budget]] = []
    for commit in commits:
        budget = commit.find(run, gpu)
        if budget is not None and (not steps or steps[-1][1].figures != budget.figures):
            steps.append((commit, budget))
    return steps

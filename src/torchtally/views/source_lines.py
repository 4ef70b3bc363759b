"""A file of the user's, line by line, with what each line costs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torchtally.ledger import Entry, Ledger, Total, line_of, once_per_site
from torchtally.table import Cell, Column, Table
from torchtally.timing.roofline import Bound
from torchtally.units import Unit
from torchtally.views.bottlenecks import bound_cells, bound_columns, seconds_by_bound
from torchtally.views.columns import (
    BACKWARD,
    COPIES,
    COUNT,
    EVALUATION,
    FORWARD,
    MOVED,
    ONLY_WHERE_ANY,
    OPTIMIZER,
    RECOMPUTE,
    SAVED,
    SECONDS,
    VIEWS,
)
from torchtally.views.timeline import letters_of

BAR_WIDTH = 10
BAR = Column("bar", "by bound", Unit.BAR)
OPERATORS = replace(COUNT, column=replace(COUNT.column, rank=4))
FIGURES = (
    FORWARD, BACKWARD, SAVED, MOVED, RECOMPUTE, OPTIMIZER, EVALUATION, VIEWS, COPIES, OPERATORS
)  # fmt: skip
LINE = Column("line_number", "line", Unit.COUNT)
SOURCE = Column("source", "source", Unit.TEXT)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file whose lines cost something."""

    path: str
    is_own: bool
    total: Total


def source_files(ledger: Ledger) -> list[SourceFile]:
    """The user's own first, then by time and FLOPs."""
    files: dict[str, SourceFile] = {}
    for line, total in ledger.by_line().items():
        if line is not None:
            before = files.get(line.file, SourceFile(line.file, line.is_own, Total()))
            files[line.file] = replace(before, total=before.total + total)
    return sorted(
        files.values(),
        key=lambda file: (not file.is_own, -file.total.seconds, -file.total.flops, file.path),
    )


def source_table(ledger: Ledger, path: str, text: str | None) -> Table:
    """Every line of the file where its text is known, else those that ran; in their order.

    Lines without operators have no numbers. The bar is a line's time by what bounds it, against
    that of the line that takes most. The totals are the file's.
    """
    costs: dict[int, Total] = {}
    sources: dict[int, str] = {}
    for line, total in ledger.by_line().items():
        if line is not None and line.file == path:
            costs[line.line] = costs.get(line.line, Total()) + total
            sources[line.line] = line.text
    if text is not None:
        sources |= dict(enumerate(text.splitlines(), 1))
    bars = _bars(ledger, path) if ledger.is_timed else {}
    bound = bound_cells(ledger, once_per_site(_number_in(path)))
    figures = [each for each in FIGURES if each not in ONLY_WHERE_ANY or each.of(ledger.total)]
    columns = [each.column for each in figures]
    if ledger.is_timed:
        columns = [BAR, SECONDS.column, *columns]
        figures = [SECONDS, *figures]

    def row(number: int) -> tuple[Cell, ...]:
        total = costs.get(number)
        numbers: Sequence[Cell] = (
            [None] * len(figures) if total is None else [each.of(total) for each in figures]
        )
        bar = [bars.get(number, "")] if ledger.is_timed else []
        return (*bar, *numbers, *bound(number), number, sources[number].expandtabs(4))

    whole = sum(costs.values(), start=Total())
    return Table(
        title=path,
        columns=(*columns, *bound_columns(ledger), LINE, SOURCE),
        rows=tuple(row(number) for number in sorted(sources)),
        totals=(
            *([None] if ledger.is_timed else []),
            *(each.of(whole) for each in figures),
            *(None for _ in bound_columns(ledger)),
            None,
            None,
        ),
    )


def _number_in(path: str) -> Callable[[Entry], int]:
    """The line of an operator in this file; 0 where it is in another."""

    def number(entry: Entry) -> int:
        line = entry.line
        return line.line if line is not None and line.file == path else 0

    return number


def _bars(ledger: Ledger, path: str) -> dict[int, str]:
    """C compute, M memory, N network, B bubbles, S sleep, O overhead; against the slowest line."""
    by_line = seconds_by_bound(ledger, once_per_site(line_of))
    most = max((sum(parts.values()) for parts in by_line.values()), default=0.0)
    of_file = seconds_by_bound(ledger, once_per_site(_number_in(path)))
    return {
        number: letters_of(
            ((str(bound)[0].upper(), parts.get(bound, 0.0)) for bound in Bound), most, BAR_WIDTH
        )
        for number, parts in of_file.items()
        if number
    }

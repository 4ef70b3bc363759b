"""Published figures beside predicted ones, each half of a table apart: what errors are left.

Constants are learnt on half A of some tables; half B, and every other table, is never learnt from.
"""

from collections.abc import Iterable, Sequence
from statistics import median, quantiles
from typing import Protocol


class Compared(Protocol):
    """One row of a table, published and predicted."""

    @property
    def half(self) -> str:
        """A or B."""

    @property
    def ratio(self) -> float:
        """Predicted over published seconds."""

    @property
    def best_ratio(self) -> float:
        """The same with everything at its best."""


COLUMNS = (
    "rows", "n", "at best", "half A: n", "median", "error", "half B: n", "median", "error", "p90",
)  # fmt: skip


LEAST_ROWS = 3
"""No median is told of fewer."""


def signed(ratios: Iterable[float]) -> float:
    """The median, over 1."""
    return median(ratios) - 1


def error(ratios: Iterable[float]) -> float:
    """The median of what each is off."""
    return median(abs(ratio - 1) for ratio in ratios)


def ninth_decile(errors: Iterable[float]) -> float:
    """Between the two nearest errors, as `statistics.quantiles` has it of a whole population."""
    ordered = sorted(errors)
    return ordered[0] if len(ordered) == 1 else quantiles(ordered, n=10, method="inclusive")[-1]


def cells(name: str, errors: Sequence[Compared]) -> tuple[str, ...]:
    """A line of the table, for all these rows."""
    halves = []
    for half in "AB":
        ratios = [row.ratio for row in errors if row.half == half]
        halves += [
            str(len(ratios)),
            *((f"{signed(ratios):+.1%}", f"{error(ratios):.1%}") if ratios else ("", "")),
        ]
    last = ninth_decile(abs(row.ratio - 1) for row in errors)
    best = signed(row.best_ratio for row in errors)
    return (name, str(len(errors)), f"{best:+.1%}", *halves, f"{last:.1%}")


def markdown(lines: Iterable[tuple[str, ...]]) -> str:
    """The table as a document has it."""
    rows = [COLUMNS, (":--", *("--:",) * (len(COLUMNS) - 1)), *lines]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)

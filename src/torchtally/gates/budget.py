"""A file of budgets, kept in a repository: what each run took, and how much more it may take.

    [[budget]]
    run = "train.py --batch_size=32"
    gpu = "H100-SXM"
    tolerance = "2%"
    limits = ["peak < 24GiB"]      # besides, by hand
    peak = 10963910656             # 10.21 GiB
    step = 0.0912                  # 91.20 ms

`tally run --budget FILE --update` writes the figures, `tally run --budget FILE` compares with them.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torchtally.errors import UsageError, did_you_mean
from torchtally.files.atomic import write_atomically
from torchtally.files.reading import read_bytes
from torchtally.gates.gauges import GAUGES
from torchtally.gates.limits import Limit, parse_limits
from torchtally.ledger import Ledger
from torchtally.units import format_number, parse_fraction

TOLERANCE = "2%"
RECORDED = ("peak", "reserved", "step", "flops")
"""What a new budget has."""
HEADER = """\
# Written by `tally run --budget FILE --update`, and checked by `tally run --budget FILE`.
# A figure may get worse by `tolerance`; `limits` are written by hand and kept.
"""


@dataclass(frozen=True, slots=True)
class Budget:
    """What one run may take."""

    run: str
    """The script with its arguments."""
    gpu: str
    figures: Mapping[str, float] = field(default_factory=dict)
    """By the gauges' names, in their units."""
    tolerance: str = TOLERANCE
    limits: tuple[str, ...] = ()
    """By hand: `peak < 24GiB`."""

    def all_limits(self) -> list[Limit]:
        """Those of its figures, each with the tolerance, and those by hand."""
        share = parse_fraction(self.tolerance)
        derived = []
        for name, figure in self.figures.items():
            is_lower = GAUGES[name].is_better_lower
            amount = figure * (1 + share if is_lower else 1 - share)
            relation = "<=" if is_lower else ">="
            shown = format_number(figure, GAUGES[name].unit)
            sign = "+" if is_lower else "-"
            text = f"{name} {relation} {shown} {sign} {self.tolerance} of the budget"
            derived.append(Limit(name, relation, amount, text))
        return [*derived, *parse_limits(self.limits)]

    def update(self, ledger: Ledger) -> "Budget":
        """Budget with the figures of this run, for the same gauges. Raises UsageError for one that
        is unknown.
        """
        figures = {}
        for name in self.figures or RECORDED:
            reading = GAUGES[name].reading(ledger)
            if reading.value is None or reading.doubt:
                if name not in self.figures:
                    continue
                raise UsageError(f"--update: {name} is unknown: {reading.doubt}.")
            figures[name] = reading.value
        return replace(self, figures=figures)


@dataclass(frozen=True, slots=True)
class BudgetFile:
    """All budgets of a file, in its order."""

    path: str
    budgets: tuple[Budget, ...] = ()

    @classmethod
    def load(cls, path: str, *, may_be_missing: bool = False) -> "BudgetFile":
        """Raises UsageError for a file that is not one."""
        try:
            values = tomllib.loads(read_bytes(path).decode())
        except FileNotFoundError:
            if may_be_missing:
                return cls(path)
            raise UsageError(
                f"{path}: no such file. `tally run --budget {path} --update ...` writes it."
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{path}: cannot be read as TOML ({error}).") from error
        return cls(path, budgets_of(values, path))

    def find(self, run: str, gpu: str) -> Budget | None:
        return next((each for each in self.budgets if (each.run, each.gpu) == (run, gpu)), None)

    def budget_of(self, run: str, gpu: str) -> Budget:
        """Raises UsageError where this run has none."""
        budget = self.find(run, gpu)
        if budget is None:
            known = ", ".join(f"`{each.run}` on {each.gpu}" for each in self.budgets[:5])
            raise UsageError(
                f"{self.path} has no budget for `{run}` on {gpu}. Write it with --update."
                + (f"\nIt has budgets for {known}." if known else "")
            )
        return budget

    def with_budget(self, budget: Budget) -> "BudgetFile":
        """Budgets with this one in the stead of the one for the same run, else at the end."""
        old = self.find(budget.run, budget.gpu)
        if old is None:
            return replace(self, budgets=(*self.budgets, budget))
        return replace(self, budgets=tuple(budget if b is old else b for b in self.budgets))

    def save(self) -> None:
        """Whole or not at all. Raises UsageError where it cannot be written."""
        try:
            write_atomically(self.path, text_of(self.budgets).encode())
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written ({error.strerror}).") from error


def budgets_of(values: dict[str, Any], path: str) -> tuple[Budget, ...]:
    """The budgets of a file's TOML. Raises UsageError for what is not one."""
    listed = values.get("budget", [])
    others = [key for key in values if key != "budget"]
    if others or not isinstance(listed, list):
        raise UsageError(f"{path}: expected [[budget]] alone, got {', '.join(others)[:200]}.")
    return tuple(_budget(entry, path) for entry in listed)


def text_of(budgets: Iterable[Budget]) -> str:
    """The file's text."""
    parts = [HEADER]
    for budget in budgets:
        lines = [
            "[[budget]]",
            f"run = {_quote(budget.run)}",
            f"gpu = {_quote(budget.gpu)}",
            f"tolerance = {_quote(budget.tolerance)}",
        ]
        if budget.limits:
            lines.append(f"limits = [{', '.join(map(_quote, budget.limits))}]")
        for name, figure in budget.figures.items():
            key = name if name.isalpha() else _quote(name)
            lines.append(f"{key} = {figure!r}  # {format_number(figure, GAUGES[name].unit)}")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _quote(text: str) -> str:
    """Text as a basic string of TOML, which escapes like JSON but for DEL and surrogates."""
    escaped = "".join(
        char if char.isprintable() and char not in '"\\' else f"\\U{ord(char):08x}" for char in text
    )
    return f'"{escaped}"'


def _budget(entry: Any, path: str) -> Budget:
    if not isinstance(entry, dict):
        raise UsageError(f"{path}: a budget must be a table: [[budget]].")
    texts = {key: entry.get(key) for key in ("run", "gpu")}
    tolerance, limits = entry.get("tolerance", TOLERANCE), entry.get("limits", [])
    names = [key for key in entry if key not in ("run", "gpu", "tolerance", "limits")]
    for key, value in {**texts, "tolerance": tolerance}.items():
        if not isinstance(value, str):
            raise UsageError(f"{path}: a budget needs a string for {key}.")
    place = f"{path}, budget of `{texts['run']}`"
    for name in names:
        if name not in GAUGES:
            raise UsageError(f"{place}: unknown {name!r}. {did_you_mean(name, GAUGES)}")
        if isinstance(entry[name], bool) or not isinstance(entry[name], int | float):
            raise UsageError(f"{place}: {name} must be a number, in its plain unit.")
    if not isinstance(limits, list) or not all(isinstance(limit, str) for limit in limits):
        raise UsageError(f"{place}: limits must be a list of strings like 'peak < 24GiB'.")
    budget = Budget(
        run=str(texts["run"]),
        gpu=str(texts["gpu"]),
        figures={name: entry[name] for name in names},
        tolerance=tolerance,
        limits=tuple(limits),
    )
    try:
        budget.all_limits()
    except UsageError as error:
        raise UsageError(f"{place}: {error}") from None
    return budget

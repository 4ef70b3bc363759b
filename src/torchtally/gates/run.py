"""The limits of one `tally run`: its own, and those of its budget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchtally.errors import UsageError
from torchtally.gates.budget import Budget, BudgetFile
from torchtally.gates.check import Finding, check
from torchtally.gates.gauges import GaugeReading
from torchtally.gates.limits import Limit, parse_limits
from torchtally.ledger import Ledger


@dataclass(frozen=True, slots=True)
class RunGates:
    """What a run is held to."""

    limits: tuple[Limit, ...] = ()
    file: BudgetFile | None = None
    """To be updated."""
    budget: Budget | None = None

    def findings(self, ledger: Ledger) -> list[Finding]:
        """Findings of all limits; where the budget is written anew, of those by hand."""
        limits = list(self.limits)
        if self.budget is not None:
            is_update = self.file is not None
            limits += parse_limits(self.budget.limits) if is_update else self.budget.all_limits()
        findings = check(ledger, limits)
        if ledger.trace.step_ends or ledger.course.generations:
            return findings
        return [replace(each, reading=undecided(each.reading)) for each in findings]

    def update(self, ledger: Ledger) -> Budget | None:
        """The budget as it was written; None where it is not to be. Raises UsageError."""
        if self.file is None or self.budget is None:
            return None
        budget = self.budget.update(ledger)
        self.file.with_budget(budget).save()
        return budget


def undecided(reading: GaugeReading) -> GaugeReading:
    """A quantity of a run that neither trained nor generated: as much as it came to. A script that
    caught its own exception would else pass by having done nothing.
    """
    doubt = reading.doubt or "no training step was completed, and nothing was generated"
    return replace(reading, doubt=doubt, is_most=False)


def run_gates(
    limits: Sequence[str], budget_place: str | None, *, is_update: bool, run: str, gpu: str
) -> RunGates:
    """What the options say. Raises UsageError, before anything runs, for limits that cannot be
    read and for a run without a budget.
    """
    parsed = tuple(parse_limits(limits))
    if budget_place is None:
        if is_update:
            raise UsageError("--update needs a file: add --budget FILE.")
        return RunGates(parsed)
    file = BudgetFile.load(budget_place, may_be_missing=is_update)
    if is_update:
        return RunGates(parsed, file, file.find(run, gpu) or Budget(run, gpu))
    return RunGates(parsed, None, file.budget_of(run, gpu))

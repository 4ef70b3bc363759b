"""What ran where: the finest grouping of a run's operators, of which every other one is a sum."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torchtally.ledger import Entry, Ledger, Line, library_line_of
from torchtally.timing.roofline import Bound
from torchtally.trace import Phase
from torchtally.work import Cost, Kind


class CallPart(NamedTuple):
    """An operator with its shapes, or its part of a fused kernel."""

    call: int
    """Its number in `Trace.calls`."""
    part: int


class Provenance(NamedTuple):
    """Operators that are alike in all but when they ran."""

    job: int
    """Its number in `Provenances.jobs`."""
    site: int
    """Its number in `Trace.sites`."""
    phase: Phase
    stream: int


@dataclass(slots=True)
class Spent:
    """What the operators of one provenance and bound take together in the reported period.

    FLOPs and bytes moved are those of the job, as often as it ran.
    """

    count: int = 0
    bytes_allocated: int = 0
    bytes_saved: int = 0
    seconds: float = 0.0
    kernel_s: float = 0.0
    network_s: float = 0.0
    exposed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JobCost:
    """What a job is and costs each time."""

    job: CallPart
    operator: str
    kind: Kind
    cost: Cost


@dataclass(frozen=True, slots=True)
class Provenances:
    """All of a run, and what those of the reported period cost."""

    jobs: tuple[JobCost, ...]
    rows: tuple[Provenance, ...]
    of_kernels: tuple[int, ...]
    """The row of each operator that ran, in order; of a fused kernel that of its first part."""
    spent: Mapping[tuple[int, Bound], Spent]
    """By row and by what limits its operators."""
    lines: tuple[Line | None, ...]
    """Of each site: the line that it is charged to."""
    library_lines: tuple[Line | None, ...]
    """Of each site: the innermost line, whoever wrote it."""


def provenances(ledger: Ledger) -> Provenances:
    """Every operator of the run once in `of_kernels`, and of the reported period in `spent`."""
    jobs: dict[CallPart, int] = {}
    costs: list[JobCost] = []
    rows: dict[Provenance, int] = {}
    of_kernels: list[int] = []
    sites = len(ledger.trace.sites)
    lines: list[Line | None] = [None] * sites
    library_lines: list[Line | None] = [None] * sites
    is_seen = [False] * sites
    known: dict[tuple[int, int, int, int, int], int] = {}

    def row_of(entry: Entry) -> int:
        op, part = entry.op, entry.part
        site = site_of(entry)
        # By the phase's identity: an enum's hash runs Python code, once for every operator.
        quick = (op.call, part, site, id(op.phase), op.stream)
        row = known.get(quick)
        if row is not None:
            return row
        job = CallPart(op.call, part)
        if job not in jobs:
            jobs[job] = len(costs)
            costs.append(JobCost(job, entry.operator, entry.kind, entry.cost))
        if not is_seen[site]:
            is_seen[site] = True
            lines[site], library_lines[site] = entry.line, library_line_of(entry)
        row = rows.setdefault(Provenance(jobs[job], site, op.phase, op.stream), len(rows))
        known[quick] = row
        return row

    first, end = ledger.reported_period.first, ledger.reported_period.end
    spent: dict[tuple[int, Bound], Spent] = {}
    quick_spent: dict[tuple[int, int], Spent] = {}
    reported = {id(entry) for entry in ledger.reported}
    for entry in ledger.entries:
        row = row_of(entry)
        if entry.is_first:
            of_kernels.append(row)
        if not first <= entry.op.clock < end or id(entry) not in reported:
            continue
        slot = ledger.slot(entry)
        total = quick_spent.get((row, id(slot.bound)))
        if total is None:
            total = spent[row, slot.bound] = Spent()
            quick_spent[row, id(slot.bound)] = total
        total.count += 1
        total.bytes_allocated += entry.bytes_allocated
        total.bytes_saved += entry.bytes_saved
        total.seconds += slot.seconds
        total.kernel_s += slot.kernel_s
        if entry.kind is Kind.COMMUNICATION:
            total.network_s += slot.kernel_s
            total.exposed_s += slot.exposed_s
    return Provenances(
        tuple(costs), tuple(rows), tuple(of_kernels), spent, tuple(lines), tuple(library_lines)
    )


def site_of(entry: Entry) -> int:
    """The number of the site that an entry belongs to: of its part of a fused kernel."""
    op = entry.op
    return op.parts[entry.part] if entry.call.fused is not None and op.parts else op.site

"""Accounting: from a trace to its ledger."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import msgspec

from torchtally.ledger.agreement import with_like_figures
from torchtally.ledger.delegation import delegating_line, line_by
from torchtally.ledger.groups import is_copy, is_view
from torchtally.ledger.ledger import Ledger
from torchtally.ledger.pricing import CallCost, call_cost
from torchtally.ledger.steps import Course, Period, course_of
from torchtally.ledger.times import no_times
from torchtally.ledger.total import Coverage, Entry, Line, Total, Uncounted
from torchtally.memory import Category, Memory, replay
from torchtally.timing.roofline import Roofline
from torchtally.trace import FORWARD_PHASES, Call, Phase, Site, Trace
from torchtally.trace.file import collection_paused
from torchtally.trace.storage import allocated_bytes
from torchtally.work import Cost, Kind, cost_of_part, reason_uncounted
from torchtally.work.convention import Convention

Selection = int | tuple[int, int] | Literal["all"] | None
"""A step by its number, the first and last of several, the whole run, or what is best shown."""


def account(
    trace: Trace,
    *,
    convention: Convention = Convention.FULL,
    roofline: Roofline | None = None,
    step: Selection = None,
    peers: Sequence[Trace] = (),
) -> Ledger:
    """The ledger of a trace: exact FLOPs and bytes by the rules in `work/`, time by a roofline.

    `step` says what the totals are of: a step by its number, the first and last of several, "all"
    for the whole run; None for a step that others are like (`Course.default_period`). Evaluation
    is left out of a single step. `convention` says whether causal attention counts in full.

    Of a trace that a profiler recorded, times are measured, and the roofline of the chip that it
    ran on says what they would be; the roofline of another chip predicts.

    `peers` are the traces of ranks that ran with this one: they are timed together, and wait for
    each other.

    An operator without a rule, or whose rule fails on the call, is uncounted and listed in
    `coverage`; one whose time the roofline cannot predict is listed in `untimed`. Raises UsageError
    for a step that was not run.
    """
    others = tuple(account(peer, convention=convention, step=step) for peer in peers)
    with collection_paused():
        costs = tuple(call_cost(call, convention) for call in trace.calls)
        course = with_like_figures(course_of(trace), costs)
        trace, period = course.trace, select(course, step)
        memory = replay(trace)
        delegate = delegating_line(_flops_of_sites(trace, costs, period))
        entries = _entries(trace, costs, memory, delegate)
        reported = entries_of(entries, period)
        ledger = Ledger(
            trace=trace,
            course=course,
            reported_period=period,
            convention=convention,
            entries=entries,
            reported=reported,
            total=_total(reported, costs),
            coverage=_coverage(reported, costs),
            memory=memory,
            costs=costs,
            times=no_times(trace),
            delegate=delegate,
            others=others,
        )
        measured = trace.measured
        is_elsewhere = roofline is not None and roofline.chip.name != trace.chip
        if measured is not None and not is_elsewhere:
            return ledger.as_measured(roofline) if measured.kernels else ledger
        return ledger if roofline is None else ledger.with_predicted_times(roofline)


def _flops_of_sites(
    trace: Trace, costs: Sequence[CallCost], period: Period
) -> list[tuple[Site, int]]:
    """FLOPs of a period, evaluation included."""
    flops: Counter[int] = Counter()
    pairs = Counter((op.site, op.call) for op in trace.ops if period.first <= op.clock < period.end)
    for (site, call), count in pairs.items():
        flops[site] += count * costs[call].cost.flops
    return [(trace.sites[site], site_flops) for site, site_flops in flops.items()]


def _entries(
    trace: Trace, costs: Sequence[CallCost], memory: Memory, delegate: Line | None
) -> tuple[Entry, ...]:
    allocated, saved = _allocations(trace, memory)
    ops = trace.ops
    calls, sites = [op.call for op in ops], [op.site for op in ops]
    clocks = [op.clock for op in ops]
    lines = list(map(line_by(delegate), trace.sites))
    kinds, exact = [cost.kind for cost in costs], [cost.cost for cost in costs]
    names = [call.name for call in trace.calls]
    entries = tuple(
        map(
            Entry,
            range(len(ops)),
            ops,
            map(trace.calls.__getitem__, calls),
            map(trace.sites.__getitem__, sites),
            map(kinds.__getitem__, calls),
            map(exact.__getitem__, calls),
            (allocated.get(clock, 0) for clock in clocks),
            (saved.get(clock, 0) for clock in clocks),
            map(lines.__getitem__, sites),
            map(names.__getitem__, calls),
        )
    )
    if all(call.fused is None for call in trace.calls):
        return entries
    shares = [shares_of(call) for call in trace.calls]
    return tuple(
        part
        for entry in entries
        for part in parts_of(entry, shares[entry.op.call], trace.sites, lines)
    )


Shares = Sequence[tuple[str, Cost, float]]
"""Of each operator in a fused kernel: its name, its cost, its share of the kernel's time."""


def shares_of(call: Call) -> Shares:
    """Time is shared by the bytes that each moves; evenly where none moves any."""
    parts = () if call.fused is None else call.fused.parts
    costs = [cost_of_part(part) for part in parts]
    whole = sum(cost.bytes for cost in costs)
    return [
        (part.operator, cost, cost.bytes / whole if whole else 1 / len(parts))
        for part, cost in zip(parts, costs, strict=True)
    ]


def parts_of(
    entry: Entry, shares: Shares, sites: Sequence[Site], lines: Sequence[Line | None]
) -> Iterator[Entry]:
    """The operators of a fused kernel; the entry itself of one that is alone.

    What was allocated for the kernel is the first one's, which moves most.
    """
    if not shares:
        yield entry
        return
    for place, ((operator, cost, share), site) in enumerate(
        zip(shares, entry.op.parts, strict=True)
    ):
        is_first = place == 0
        yield msgspec.structs.replace(
            entry,
            site=sites[site],
            cost=cost,
            bytes_allocated=entry.bytes_allocated if is_first else 0,
            bytes_saved=entry.bytes_saved if is_first else 0,
            line=lines[site],
            operator=operator,
            share=share,
            part=place,
        )


def _allocations(trace: Trace, memory: Memory) -> tuple[dict[int, int], dict[int, int]]:
    """Bytes born at each tick; and those of them saved from forward to backward."""
    phase, activation = Phase.FORWARD, Category.ACTIVATIONS
    forward = {op.clock for op in trace.ops if op.phase is phase}
    allocated: dict[int, int] = {}
    saved: dict[int, int] = {}
    for storage, category in zip(memory.storages, memory.categories, strict=True):
        born = storage.born
        size = allocated_bytes(storage.requested_bytes) + storage.spare_bytes
        allocated[born] = allocated.get(born, 0) + size
        if category is activation and born in forward:
            saved[born] = saved.get(born, 0) + size
    return allocated, saved


def since(ledger: Ledger, tick: int) -> Ledger:
    """The ledger with totals of its reported period from a tick on."""
    period = replace(ledger.reported_period, first=max(tick, ledger.reported_period.first))
    reported = entries_of(ledger.entries, period)
    cut = replace(
        ledger,
        reported_period=period,
        reported=reported,
        total=_total(reported, ledger.costs),
        coverage=_coverage(reported, ledger.costs),
    )
    return cut.with_times(ledger.times)


def select(course: Course, step: Selection) -> Period:
    """The period that a selection means. Raises UsageError for a step that was not run."""
    match step:
        case None:
            return course.default_period()
        case "all":
            return course.whole()
        case int():
            return course.span(step, step)
    return course.span(*step)


def entries_of(entries: Sequence[Entry], period: Period) -> tuple[Entry, ...]:
    """The operators of a period, evaluation left out where the period is a step."""

    def clock(entry: Entry) -> int:
        return entry.op.clock

    first, end = (bisect_left(entries, tick, key=clock) for tick in (period.first, period.end))
    evaluation = Phase.EVALUATION
    return tuple(
        entry
        for entry in entries[first:end]
        if period.has_evaluation or entry.op.phase is not evaluation
    )


def _total(entries: Sequence[Entry], costs: Sequence[CallCost]) -> Total:
    """The total, computed independently of `sums`: cost times count per distinct call and phase."""
    kernels = [entry for entry in entries if entry.is_first]
    total = Total(
        count=len(entries),
        bytes_allocated=sum(entry.bytes_allocated for entry in entries),
        bytes_saved=sum(entry.bytes_saved for entry in entries),
    )
    counts = Counter((entry.op.call, entry.op.phase) for entry in kernels)
    for (number, phase), count in counts.items():
        total += _of(costs[number].cost * count, costs[number].kind, phase)
    return replace(
        total,
        views=sum(1 for entry in entries if is_view(entry)),
        copies=sum(1 for entry in entries if is_copy(entry)),
    )


def _of(cost: Cost, kind: Kind, phase: Phase) -> Total:
    """A cost alone as a total: no operator, nothing allocated."""
    return Total(
        flops_forward=cost.flops if phase in FORWARD_PHASES else 0,
        flops_backward=cost.flops if phase is Phase.BACKWARD else 0,
        flops_recompute=cost.flops if phase is Phase.RECOMPUTE else 0,
        flops_optimizer=cost.flops if phase is Phase.OPTIMIZER else 0,
        flops_evaluation=cost.flops if phase is Phase.EVALUATION else 0,
        flops_matmul=cost.flops if kind.is_matmul else 0,
        bytes_read=cost.bytes_read,
        bytes_written=cost.bytes_written,
        network_bytes=cost.network_bytes,
    )


def _coverage(entries: Iterable[Entry], costs: Sequence[CallCost]) -> Coverage:
    kinds = Counter(entry.kind for entry in entries)
    missing: Counter[tuple[str, str]] = Counter(
        (entry.call.name, costs[entry.op.call].failure or reason_uncounted(entry.call))
        for entry in entries
        if entry.kind is Kind.UNCOUNTED or costs[entry.op.call].failure
    )
    free = sum(count for kind, count in kinds.items() if kind.is_free)
    return Coverage(
        counted=kinds.total() - free - missing.total(),
        free=free,
        sleeps=kinds[Kind.SLEEP],
        uncounted=tuple(
            Uncounted(op, count, reason) for (op, reason), count in missing.most_common()
        ),
    )


def narrow(ledger: Ledger, entries: Iterable[Entry]) -> Ledger:
    """The ledger with totals of these of its reported operators: of a line, of a module.

    Every view of it is of them alone; memory stays that of the whole run.
    """
    reported = tuple(entries)
    part = replace(ledger, reported=reported, coverage=_coverage(reported, ledger.costs))
    # Not by whole kernels, as `_total`: of a fused one, these may be some parts.
    total = part.sums(lambda entry: None).get(None, Total())
    return replace(part, total=total)

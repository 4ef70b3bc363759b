"""What a profiler's trace tells beyond a prediction: idle stretches, kernels by name, and calls
that take longer than the roofline gives them.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import fsum

from torchtally.ledger import Entry, Ledger, Line
from torchtally.ledger.measured import NS
from torchtally.table import Cell, Column, Table
from torchtally.timing.streams import ROUNDING_S
from torchtally.trace import Measured
from torchtally.trace.measured import UNKNOWN_NS
from torchtally.units import Unit
from torchtally.views.columns import part_of
from torchtally.views.lines import TEXTS, line_texts, root_of
from torchtally.views.view import view
from torchtally.work import Kind

NOT_MEASURED = "Times are predicted: `tally explain` makes this table from a profiler's trace."
SYNC_NS = 20_000
"""A wait of the host that ended so little before the device ran dry had waited for it."""


class IdleCause(StrEnum):
    """Why the device had nothing to run."""

    HOST_LATE = "host was late"
    HOST_WAITED = "host had waited for the device"
    LAUNCHING = "launch on its way"
    BETWEEN = "between queued kernels"
    UNKNOWN = "launch not recorded"


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch in which the device idles before an operator, and what for."""

    op: int
    cause: IdleCause
    seconds: float


def gaps(measured: Measured) -> Iterator[Gap]:
    """Every idle stretch, in order: before kernels of all streams together."""
    waits = sorted(end for _, end in measured.host_waits)
    done_ns = 0
    for kernel in measured.kernels:
        start_ns, launched_ns = kernel.start_ns, kernel.launched_ns
        if start_ns > done_ns:
            idle_ns = start_ns - done_ns
            if measured.is_on_host:
                yield Gap(kernel.op, IdleCause.HOST_LATE, idle_ns * NS)
            elif launched_ns == UNKNOWN_NS:
                yield Gap(kernel.op, IdleCause.UNKNOWN, idle_ns * NS)
            elif launched_ns <= done_ns:
                yield Gap(kernel.op, IdleCause.BETWEEN, idle_ns * NS)
            else:
                late_ns = min(launched_ns, start_ns) - done_ns
                place = bisect_right(waits, launched_ns) - 1
                has_waited = place >= 0 and waits[place] >= done_ns - SYNC_NS
                cause = IdleCause.HOST_WAITED if has_waited else IdleCause.HOST_LATE
                yield Gap(kernel.op, cause, late_ns * NS)
                if idle_ns > late_ns:
                    yield Gap(kernel.op, IdleCause.LAUNCHING, (idle_ns - late_ns) * NS)
        done_ns = max(done_ns, kernel.end_ns)


def reported_gaps(ledger: Ledger) -> list[tuple[Entry, Gap]]:
    """Those before operators of the reported period. They sum to its idle time."""
    measured = ledger.trace.measured
    if measured is None or not ledger.is_measured:
        predicted = [(entry, idle_s(ledger, entry)) for entry in ledger.kernels(ledger.reported)]
        return [
            (entry, Gap(entry.number, cause_of(ledger, entry, seconds), seconds))
            for entry, seconds in predicted
            if seconds > 0
        ]
    entries = {entry.number: entry for entry in ledger.reported if entry.is_first}
    return [(entries[gap.op], gap) for gap in gaps(measured) if gap.op in entries]


def cause_of(ledger: Ledger, entry: Entry, seconds: float) -> IdleCause:
    """Cause of a predicted stretch: the device waits for its host beyond what kernels that queue
    take.
    """
    assert ledger.roofline is not None
    cost = ledger.costs[entry.op.call]
    gap_s = ledger.roofline.gap_s(entry.call, cost.kind, cost.exact)
    return IdleCause.BETWEEN if seconds <= gap_s + ROUNDING_S else IdleCause.HOST_LATE


def idle_s(ledger: Ledger, entry: Entry) -> float:
    """The device's idle time before an operator."""
    slot = ledger.slot(entry)
    if ledger.is_measured or ledger.times.spans:
        return slot.idle_s
    return max(0.0, slot.seconds - slot.kernel_s)


@view("idle", "why the device is idle, and before which line", "time")
def idle(ledger: Ledger) -> Table:
    """Idle time by cause and by the line of the operator that it ended with."""
    groups: dict[tuple[IdleCause, Line | None], list[Gap]] = defaultdict(list)
    lines: dict[Line | None, None] = {}
    for entry, gap in reported_gaps(ledger):
        groups[gap.cause, entry.line].append(gap)
        lines[entry.line] = None
    root = root_of(lines)
    total_s = ledger.total.seconds
    rows: list[tuple[Cell, ...]] = []
    for (cause, line), members in groups.items():
        seconds = fsum(gap.seconds for gap in members)
        rows.append(
            (seconds, part_of(seconds, total_s), len(members), str(cause), *line_texts(line, root))
        )
    rows.sort(key=lambda row: -float(row[0] or 0))
    sums = (
        fsum(gap.seconds for members in groups.values() for gap in members),
        sum(len(members) for members in groups.values()),
    )
    return Table(
        title="Idle time of the device, by cause",
        columns=(
            Column("idle_s", "idle", Unit.SECONDS),
            Column("seconds_share", "of time", Unit.FRACTION),
            Column("gaps", "times", Unit.COUNT),
            Column("cause", "cause", Unit.TEXT),
            *TEXTS,
        ),
        rows=tuple(rows),
        totals=(sums[0], part_of(sums[0], total_s), sums[1], None, None, None),
    )


@view("real-kernel", "of a real run: the kernels that ran, and their operators", "time")
def real_kernels(ledger: Ledger) -> Table:
    """Table by the kernel's own name."""
    measured = ledger.trace.measured
    reported = (
        {entry.number: entry for entry in ledger.reported if entry.is_first}
        if ledger.is_measured
        else {}
    )
    seconds: dict[int, float] = defaultdict(float)
    times: Counter[int] = Counter()
    operators: dict[int, Counter[str]] = defaultdict(Counter)
    for kernel in () if measured is None else measured.kernels:
        entry = reported.get(kernel.op)
        if entry is not None:
            seconds[kernel.name] += kernel.duration_ns * NS
            times[kernel.name] += 1
            operators[kernel.name][entry.call.name] += 1
    whole = fsum(seconds.values())
    names = () if measured is None else measured.names
    rows = sorted(
        (
            (
                kernel_s,
                part_of(kernel_s, whole),
                times[number],
                kernel_s / times[number],
                ", ".join(name for name, _ in operators[number].most_common(3)),
                names[number],
            )
            for number, kernel_s in seconds.items()
        ),
        key=lambda row: -row[0],
    )
    return Table(
        title="By kernel, as the device ran them",
        columns=(
            Column("kernel_s", "kernels", Unit.SECONDS),
            Column("kernel_share", "of them", Unit.FRACTION),
            Column("launches", "times", Unit.COUNT),
            Column("mean_s", "each", Unit.SECONDS, rank=1),
            Column("operators", "operators", Unit.TEXT),
            Column("kernel", "kernel", Unit.TEXT),
        ),
        rows=tuple(rows),
        totals=(whole, part_of(whole, whole), sum(times.values()), None, None, None),
        note="" if ledger.is_measured else NOT_MEASURED,
    )


@view(
    "slow",
    "of a real run: calls that took longer than their roofline, most lost time first",
    "time",
)
def slow(ledger: Ledger) -> Table:
    """Table by distinct call: what its kernels took beyond what the roofline gives them."""
    times = ledger.times
    groups: dict[int, list[Entry]] = defaultdict(list)
    for entry in ledger.reported if ledger.is_measured else ():
        if entry.is_first and times.kernels_s[entry.number] > 0:
            groups[entry.op.call].append(entry)
    rows: list[tuple[Cell, ...]] = []
    lost = kernel = predicted = 0.0
    count = 0
    for number, entries in groups.items():
        measured_s = fsum(ledger.slot(entry).kernel_s for entry in entries)
        roofline_s = fsum(times.kernels_s[entry.number] for entry in entries)
        call = ledger.trace.calls[number]
        shapes = " ".join(
            f"{spec.dtype.removeprefix('torch.')}[{','.join(map(str, spec.shape))}]"
            for spec in call.inputs[:3]
        )
        kernel, predicted, count = kernel + measured_s, predicted + roofline_s, count + len(entries)
        lost += measured_s - roofline_s
        rows.append(
            (measured_s - roofline_s, measured_s, part_of(roofline_s, measured_s), len(entries),
             call.name, shapes)
        )  # fmt: skip
    rows.sort(key=lambda row: -float(row[0] or 0))
    return Table(
        title="Calls against their roofline",
        columns=(
            Column("lost_s", "beyond", Unit.SECONDS),
            Column("kernel_s", "kernels", Unit.SECONDS),
            Column("roofline_share", "reached", Unit.FRACTION),
            Column("count", "ops", Unit.COUNT, rank=1),
            Column("operator", "operator", Unit.NAME),
            Column("inputs", "inputs", Unit.TEXT),
        ),
        rows=tuple(rows),
        totals=(lost, kernel, part_of(predicted, kernel), count, None, None),
        note="" if ledger.is_measured else NOT_MEASURED,
    )


@dataclass(frozen=True, slots=True)
class RealRun:
    """The sums of a measured period."""

    step_s: float
    computing_s: float
    exposed_s: float
    """Collectives, while nothing computes and all ranks have come."""
    waiting_s: float
    """Collectives that wait for late ranks, while nothing computes. Known with the other ranks'
    files alone: else it is in `exposed_s`."""
    idle: tuple[tuple[IdleCause, float], ...]
    """Most first."""
    kernel_s: float
    counted_s: float
    """Of kernels: of operators whose FLOPs and bytes are counted."""
    timed_s: float
    """Of kernels: of operators that the roofline has a time for."""
    roofline_s: float
    """That time."""
    uncounted: tuple[tuple[str, float], ...]
    """Operators that are not counted, by the time of their kernels."""

    @property
    def busy_s(self) -> float:
        return self.computing_s + self.exposed_s + self.waiting_s


def real_run(ledger: Ledger) -> RealRun:
    """Sums of the reported period of a measured ledger."""
    idle_s: dict[IdleCause, float] = defaultdict(float)
    for _, gap in reported_gaps(ledger):
        idle_s[gap.cause] += gap.seconds
    sent = [ledger.slot(entry) for entry in ledger.reported if entry.kind is Kind.COMMUNICATION]
    exposed_s = fsum(slot.exposed_s for slot in sent)
    waiting_s = fsum(slot.waiting_s for slot in sent)
    whole_idle_s = fsum(ledger.slot(entry).idle_s for entry in ledger.reported)
    uncounted: dict[str, float] = defaultdict(float)
    counted_s = timed_s = 0.0
    for entry in ledger.reported:
        kernel_s = ledger.slot(entry).kernel_s
        if entry.kind is Kind.UNCOUNTED or ledger.costs[entry.op.call].failure:
            uncounted[entry.call.name] += kernel_s
        else:
            counted_s += kernel_s
        if ledger.times.kernels_s[entry.number] > 0:
            timed_s += kernel_s
    total = ledger.total
    return RealRun(
        step_s=total.seconds,
        computing_s=total.seconds - whole_idle_s - exposed_s - waiting_s,
        exposed_s=exposed_s,
        waiting_s=waiting_s,
        idle=tuple(sorted(idle_s.items(), key=lambda pair: -pair[1])),
        kernel_s=total.kernel_s,
        counted_s=counted_s,
        timed_s=timed_s,
        roofline_s=total.predicted_s,
        uncounted=tuple(
            sorted(
                ((name, seconds) for name, seconds in uncounted.items() if seconds > 0),
                key=lambda pair: -pair[1],
            )
        ),
    )

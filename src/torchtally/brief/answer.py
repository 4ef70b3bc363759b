"""What is most worth knowing of a run: a verdict, a few figures, the dearest lines, and what
changed since the last run of the same script.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchtally.brief.last_run import LastRun, by_line
from torchtally.chips import Chip, known_chips
from torchtally.fit.results import ChangeResult
from torchtally.gates import Finding
from torchtally.ledger import Ledger, Line, Total
from torchtally.memory.workspace import context_limits_bytes
from torchtally.table import LinePlace
from torchtally.views.difference import BOTH, Changed, align
from torchtally.views.lines import place_of, root_of
from torchtally.views.summary import ALLOCATOR_ERROR, Summary, summarise, target_of

TOP_LINES = 3
TOP_CHANGED = 3
TOP_CHANGES = 2
"""Of changes that make a run fit."""
USUAL_DTYPE = "bfloat16"
"""A chip without it is none to go to from one that has it."""
LEAST_CHANGE = 1e-3
"""Of the step: below it, a line has not changed."""


@dataclass(frozen=True, slots=True)
class DearLine:
    """A line of code, and what it costs in the reported period."""

    place: LinePlace
    source: str
    total: Total


@dataclass(frozen=True, slots=True)
class ChangedLine:
    """A line of code, and what it costs more than in the last run."""

    place: LinePlace
    source: str
    present: str
    """In which of the runs it is: "both", "before", "after"."""
    seconds_change: float | None
    """None where the time of a run is not known."""
    flops_change: int
    bytes_saved_change: int


@dataclass(frozen=True, slots=True)
class SinceLastRun:
    """What a run has more than the last one of the same script on the same GPUs."""

    last: LastRun
    step_change_s: float | None
    """None where the time of a run is not known."""
    peak_change_bytes: int
    """Of reserved memory."""
    lines: tuple[ChangedLine, ...]
    """The largest change first."""
    changed: int
    """Lines that changed, among them those."""


@dataclass(frozen=True, slots=True)
class BriefAnswer:
    """What a brief report says."""

    summary: Summary
    is_timed: bool
    lines: tuple[DearLine, ...]
    """The dearest first: by time, or by FLOPs where no time is known."""
    smallest_chip: Chip | None
    """The chip of the same vendor with the least memory that surely holds the run; None where
    none does, where the run did not end, or of several GPUs."""
    changes: tuple[ChangeResult, ...]
    """That were tried and make the run fit, the smallest first."""
    findings: tuple[Finding, ...]
    since: SinceLastRun | None


def brief_answer(
    ledger: Ledger,
    *,
    last: LastRun | None = None,
    changes: Sequence[ChangeResult] = (),
    needed_bytes: int = 0,
    findings: Sequence[Finding] = (),
) -> BriefAnswer:
    """`last` is the last run of the same script. `changes` were tried to make this one fit;
    `needed_bytes` is what it reserves unchanged with unlimited memory, where that was tried.
    `findings` are of its limits.
    """
    summary = summarise(ledger)
    fitting = sorted(
        (change for change in changes if change.fits),
        key=lambda result: (result.change.rank, -result.saved_bytes),
    )
    return BriefAnswer(
        summary=summary,
        is_timed=ledger.is_timed,
        lines=dear_lines(by_line(ledger)),
        smallest_chip=smallest_chip(ledger, summary, needed_bytes),
        changes=tuple(fitting[:TOP_CHANGES]),
        findings=tuple(findings),
        since=None if last is None else since_last_run(ledger, summary, last),
    )


def dear_lines(sums: Mapping[Line, Total]) -> tuple[DearLine, ...]:
    """The lines that cost most; those that cost nothing are left out."""
    root = root_of(sums)
    ordered = sorted(sums.items(), key=lambda item: _cost(item[1]), reverse=True)
    return tuple(
        DearLine(place_of(line.file, line.line, root), line.text, total)
        for line, total in ordered[:TOP_LINES]
        if any(_cost(total))
    )


def _cost(total: Total) -> tuple[float, int]:
    return total.seconds, total.flops


def smallest_chip(ledger: Ledger, summary: Summary, needed_bytes: int) -> Chip | None:
    """Chip with the least memory that holds the run with the allocator's error and the CUDA
    context at most; of several alike the cheapest.
    """
    verdict, own = summary.verdict, target_of(ledger)
    reserved_bytes = needed_bytes or (0 if verdict.is_open else verdict.reserved_bytes)
    if own is None or not reserved_bytes or ledger.trace.world.size > 1:
        return None
    holding = [
        chip
        for chip in known_chips()
        if chip.vendor == own.vendor
        and (USUAL_DTYPE in chip.peaks or USUAL_DTYPE not in own.peaks)
        and reserved_bytes * (1 + ALLOCATOR_ERROR) + context_limits_bytes(chip)[1]
        <= chip.total_memory_bytes
    ]
    return min(holding, key=_size_and_price, default=None)


def _size_and_price(chip: Chip) -> tuple[int, float, str]:
    price = float("inf") if chip.price is None else chip.price.usd_per_hour
    return chip.total_memory_bytes, price, chip.name


def since_last_run(ledger: Ledger, summary: Summary, last: LastRun) -> SinceLastRun:
    """Differences in the whole and by line, aligned by the lines' texts."""
    step_s = ledger.step_s
    is_timed = step_s is not None and last.step_s is not None
    least_s = LEAST_CHANGE * (step_s or 0.0)
    rows = align(last.sums(), ledger.by_line())
    lines = [changed_line(row, is_timed=is_timed) for row in rows if is_of_a_line(row)]
    changed = [line for line in lines if is_changed(line, least_s)]
    changed.sort(key=_size_of_change, reverse=True)
    return SinceLastRun(
        last=last,
        step_change_s=None if step_s is None or last.step_s is None else step_s - last.step_s,
        peak_change_bytes=summary.verdict.reserved_bytes - last.reserved_bytes,
        lines=tuple(changed[:TOP_CHANGED]),
        changed=len(changed),
    )


def is_of_a_line(row: Changed) -> bool:
    """Whether operators of a row belong to a line of code."""
    return isinstance(row.label[0], LinePlace)


def changed_line(row: Changed, *, is_timed: bool) -> ChangedLine:
    """A row of aligned lines, as differences."""
    place, source, present = row.label
    assert isinstance(place, LinePlace)
    return ChangedLine(
        place=place,
        source=str(source),
        present=str(present),
        seconds_change=row.after.seconds - row.before.seconds if is_timed else None,
        flops_change=row.after.flops - row.before.flops,
        bytes_saved_change=row.after.bytes_saved - row.before.bytes_saved,
    )


def is_changed(line: ChangedLine, least_s: float) -> bool:
    """Whether a line takes another time or memory, or is in one of the runs alone and costs."""
    if line.seconds_change is not None and abs(line.seconds_change) > least_s:
        return True
    costs = bool(line.flops_change or line.bytes_saved_change)
    return costs if line.present == BOTH else costs or bool(line.seconds_change)


def _size_of_change(line: ChangedLine) -> tuple[float, int, int]:
    return abs(line.seconds_change or 0.0), abs(line.flops_change), abs(line.bytes_saved_change)

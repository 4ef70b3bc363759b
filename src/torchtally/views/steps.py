"""The steps of a run: what each takes, which are alike, and what share of the run is reported."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchtally.ledger import Entry, Ledger, Total, sums
from torchtally.ledger.agreement import TOLERANCES, CourseFigures, StepPair
from torchtally.ledger.steps import Course, TrainingStep
from torchtally.table import Cell, Column, Table
from torchtally.trace import Phase
from torchtally.units import Unit
from torchtally.views.columns import part_of
from torchtally.views.view import view

NOTHING = Total()
AFTER = "after the last"
WHOLE = "(no step)"
USUAL_STEPS = 4
"""Steps among which most scripts have two that are alike."""
FIGURES = ("FLOPs", "bytes moved", "operators")
MOST_NAMED = 4
"""Of steps, or of those that follow each other, in a sentence."""


@dataclass(frozen=True, slots=True)
class RunShare:
    """What a part of the run is of all that was run."""

    flops: float
    seconds: float | None
    """None without times."""


@dataclass(frozen=True, slots=True)
class RunShares:
    """The run around the period that is reported."""

    total: Total
    """Of the whole run."""
    steps: int
    models: int
    reported: RunShare
    evaluation: RunShare
    was_stopped: bool
    """After the steps asked for: the rest of the script was not run."""


@dataclass(frozen=True, slots=True)
class AlikeSteps:
    """Steps that follow each other and are alike."""

    first: TrainingStep
    last: TrainingStep

    @property
    def name(self) -> str:
        first, last = self.first.number, self.last.number
        return f"{first}" if first == last else f"{first} to {last}"


def run_shares(ledger: Ledger) -> RunShares:
    """What share of the run the reported period is, and evaluation."""
    parts = sums(ledger.entries, ledger.times.slots, _is_evaluation)
    evaluation = parts.get(True, NOTHING)
    whole = parts.get(False, NOTHING) + evaluation

    def share(part: Total) -> RunShare:
        seconds = part_of(part.seconds, whole.seconds) if ledger.is_timed else None
        return RunShare(part_of(part.flops, whole.flops), seconds)

    return RunShares(
        total=whole,
        steps=len(ledger.course.steps),
        models=ledger.course.experiments,
        reported=share(ledger.total),
        evaluation=share(evaluation),
        was_stopped=ledger.trace.ending.kind == "steps",
    )


def _is_evaluation(entry: Entry) -> bool:
    return entry.op.phase is Phase.EVALUATION


def unlike(ledger: Ledger) -> str:
    """How the steps of the reported step's model differ, in words; "" where they do not."""
    step = ledger.reported_period.step
    if step is None:
        return ""
    course = ledger.course
    others = [
        other
        for other in course.steps
        if other.experiment == step.experiment and other.like != step.like
    ]
    if not others:
        return ""
    alike = _numbers([other.number for other in course.alike(step)])
    claim = (
        f"Step {alike} is unlike" if len(course.alike(step)) == 1 else f"Steps {alike} differ from"
    )
    other = others[-1]
    earlier, later = (step, other) if step.number < other.number else (other, step)
    pair = StepPair(earlier, later, CourseFigures(course, ledger.costs))
    place = " in the optimizer alone" if pair.passes_agree else ""
    ran = len(course.steps)
    # A script that ended by itself has no more of them, and of many a few more would differ, too.
    is_short = ledger.trace.ending.kind == "steps" and ran < USUAL_STEPS
    more = f" Trace more to find steps that are alike: --steps {USUAL_STEPS}."
    hint = more if is_short and not course.is_steady(step) else ""
    figures = _figures_apart(pair, is_reversed=step is earlier)
    return (
        f"{claim} {_numbers([other.number for other in others])}{place}: step {other.number} has "
        f"{figures} ({course.difference(step, other)}).{hint}"
    )


def _figures_apart(pair: StepPair, *, is_reversed: bool) -> str:
    """How much more or less of each figure the earlier step has, or the later one, in words."""
    theirs, own = pair.figures
    if is_reversed:
        theirs, own = own, theirs
    parts = [
        f"{round(100 * abs(there / here - 1))} % {'more' if there > here else 'fewer'} {name}"
        for here, there, tolerance, name in zip(own, theirs, TOLERANCES, FIGURES, strict=True)
        if here and abs(there / here - 1) > tolerance
    ]
    return ", ".join(parts) or "other work"


def _numbers(numbers: Sequence[int]) -> str:
    """Numbers like "1, 3 to 5"; of many only the first."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    names = [f"{part[0]}" if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts]
    left_out = len(numbers) - sum(map(len, parts[:MOST_NAMED]))
    return ", ".join(names[:MOST_NAMED]) + (f" and {left_out} more" if left_out else "")


# The view --------------------------------------------------------------------------------------


@view("step", "the training steps: which are alike, and what each costs")
def steps(ledger: Ledger) -> Table:
    """Every step of the whole run, those that follow each other and are alike in one row.

    Evaluation is in columns of its own, beside the step it came before or in.
    """
    course, is_timed = ledger.course, ledger.is_timed
    blocks = list(_blocks(course))
    ends = [block.last.end for block in blocks]
    parts = sums(
        ledger.entries,
        ledger.times.slots,
        lambda entry: (bisect_right(ends, entry.op.clock), _is_evaluation(entry)),
    )
    whole = sum(parts.values(), start=NOTHING)

    def row(place: int, texts: Sequence[Cell]) -> tuple[Cell, ...]:
        work, evaluation = (parts.get((place, key), NOTHING) for key in (False, True))
        both = work + evaluation
        times = (work.seconds, evaluation.seconds) if is_timed else ()
        share = (
            part_of(both.seconds, whole.seconds) if is_timed else part_of(both.flops, whole.flops)
        )
        flops = (work.flops, evaluation.flops)
        return (*texts[:1], work.count, *times, share, *flops, *texts[1:])

    rows = [row(place, (block.name, *_texts(ledger, block))) for place, block in enumerate(blocks)]
    if (len(blocks), False) in parts or (len(blocks), True) in parts:
        rows.append(row(len(blocks), (AFTER if blocks else WHOLE, "", "")))
    columns = _columns(is_timed=is_timed)
    return Table(
        title="The run, step by step",
        columns=columns,
        rows=tuple(rows),
        totals=tuple(
            None if column.unit.is_text else sum(cell or 0 for cell in cells)
            for column, cells in zip(columns, zip(*rows, strict=True), strict=True)
        )
        if rows
        else (None,) * len(columns),
        note="Of the whole run. Evaluation is forward work that no backward pass follows; it is in "
        "no step's totals.",
    )


def _columns(*, is_timed: bool) -> tuple[Column, ...]:
    times = (
        Column("seconds", "time", Unit.SECONDS),
        Column("seconds_evaluation", "evaluation", Unit.SECONDS),
    )
    return (
        Column("step_range", "step", Unit.NAME),
        Column("count", "ops", Unit.COUNT, rank=3),
        *(times if is_timed else ()),
        Column("run_share", "of run", Unit.FRACTION),
        Column("flops", "FLOPs", Unit.FLOPS),
        Column("flops_evaluation", "eval FLOPs", Unit.FLOPS, rank=2),
        Column("like", "kind", Unit.NAME, rank=1),
        Column("remark", "", Unit.TEXT, rank=4),
    )


def _blocks(course: Course) -> Iterator[AlikeSteps]:
    first: TrainingStep | None = None
    last: TrainingStep | None = None
    for step in course.steps:
        # A model's first step has all before it, and stands alone.
        is_after_first = last is not None and last is first and course.is_first(last)
        if last is None or step.like != last.like or is_after_first:
            if first is not None and last is not None:
                yield AlikeSteps(first, last)
            first = step
        last = step
    if first is not None and last is not None:
        yield AlikeSteps(first, last)


def _texts(ledger: Ledger, block: AlikeSteps) -> tuple[str, str]:
    """(which kind of step it is, what is special about it)."""
    step, steps = block.first, ledger.course.steps
    kind = f"like {step.like}" if step.like != step.number else ""
    if ledger.course.is_first(step):
        return kind, f"model {step.experiment}, with all before it"
    if kind:
        return kind, ""
    return kind, f"unlike step {step.number - 1}: " + ledger.course.difference(
        steps[step.number - 2], step
    )

"""Which fixes to keep: what each brings alone, then together, every figure of a run."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum

from torchtally.fixes.fix import Fix, NotApplicableError, ValueChange
from torchtally.fixes.patch import Patch, ScriptSources, patch
from torchtally.fixes.trial import FixTrial

LEAST_GAIN = 0.01
"""Of a figure: what a fix must save to be kept."""
ORDER = tuple(ValueChange)


@dataclass(frozen=True, slots=True)
class SkippedFix:
    """A change that was not run, or a file that was left alone, and why."""

    name: str
    reason: str


class FixGoal(StrEnum):
    """What the fixes are for."""

    FIT = "fit"
    """As little memory, until the chip holds it."""
    BUDGET = "budget"
    """Within so much reserved memory, as few seconds of recomputation."""
    FASTER = "faster"
    """As short a step, in the chip's memory."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A patch that was run."""

    patch: Patch
    trial: FixTrial
    gain: float
    """Share of the goal's figure that it saves."""


@dataclass(slots=True)
class ChosenFixes:
    """What was tried, and what is kept."""

    before: FixTrial
    goal: FixGoal
    alone: list[Tried] = field(default_factory=list)
    together: list[Tried] = field(default_factory=list)
    skipped: list[SkippedFix] = field(default_factory=list)
    kept: Tried | None = None
    """None: nothing helps."""
    proof: FixTrial | None = None
    """A run of what is kept in the chip's memory, where that is the goal."""


Run = Callable[[Patch], FixTrial]


def cost_of(goal: FixGoal, trial: FixTrial, capacity_bytes: int) -> float:
    """The figure that is to be small; infinite where the trial failed or does not fit."""
    if trial.ledger is None:
        return float("inf")
    if goal is FixGoal.FIT:
        return float(trial.reserved_bytes)
    if trial.step_s is None or trial.reserved_bytes > capacity_bytes:
        return float("inf")
    return trial.step_s


def choose(
    before: FixTrial,
    sources: ScriptSources,
    fixes: Iterable[Fix],
    goal: FixGoal,
    run: Run,
    *,
    capacity_bytes: int,
    jobs: int = 1,
) -> ChosenFixes:
    """Fixes alone, several at a time; then, from the one that changes least on, together as long as
    each one more helps. For FIT no more than are needed, and none where it fits as it is.

    Raises UsageError from the runs.
    """
    choice = ChosenFixes(before, goal)

    def tried(changed: Patch, trial: FixTrial, than: float) -> Tried:
        cost = cost_of(goal, trial, capacity_bytes)
        gain = 0.0 if cost == float("inf") else 1 - cost / than if than < float("inf") else 1.0
        return Tried(changed, trial, gain)

    at_first = cost_of(goal, before, capacity_bytes)
    if goal is FixGoal.FIT and at_first <= capacity_bytes:
        return choice
    singles = []
    for fix in fixes:
        try:
            singles.append(patch(sources, (fix,)))
        except NotApplicableError as error:
            choice.skipped.append(SkippedFix(fix.name, str(error)))
    with ThreadPoolExecutor(jobs) as pool:
        trials = list(pool.map(run, singles))
    choice.alone = [tried(*each, at_first) for each in zip(singles, trials, strict=True)]
    helpful = [each for each in choice.alone if each.gain >= LEAST_GAIN]
    helpful.sort(key=lambda each: (ORDER.index(each.patch.fixes[0].values), -each.gain))
    if goal is FixGoal.FASTER:
        helpful.sort(key=lambda each: -each.gain)
    for each in helpful:
        if is_enough(choice, capacity_bytes):
            break
        if choice.kept is None:
            choice.kept = each
            continue
        try:
            changed = patch(sources, (*choice.kept.patch.fixes, *each.patch.fixes))
        except NotApplicableError:  # what it changes is gone: the others did that
            continue
        than = cost_of(goal, choice.kept.trial, capacity_bytes)
        both = tried(changed, run(changed), than)
        choice.together.append(both)
        if both.gain >= LEAST_GAIN:
            choice.kept = both
    without_needless(choice, sources, run, tried, capacity_bytes)
    return choice


def is_enough(choice: ChosenFixes, capacity_bytes: int) -> bool:
    """Whether what is kept fits, where that is the goal."""
    kept = choice.kept
    return (
        choice.goal is FixGoal.FIT
        and kept is not None
        and kept.trial.reserved_bytes <= capacity_bytes
    )


def without_needless(
    choice: ChosenFixes,
    sources: ScriptSources,
    run: Run,
    tried: Callable[[Patch, FixTrial, float], Tried],
    capacity_bytes: int,
) -> None:
    """Leave out each fix without which the script fits all the same."""
    if not is_enough(choice, capacity_bytes):
        return
    assert choice.kept is not None
    for fix in choice.kept.patch.fixes[:-1]:
        fixes = tuple(each for each in choice.kept.patch.fixes if each is not fix)
        known = next((each for each in choice.alone if each.patch.fixes == fixes), None)
        try:
            changed = patch(sources, fixes) if known is None else known.patch
        except NotApplicableError:  # it changes what this one makes
            continue
        trial = run(changed) if known is None else known.trial
        if trial.ledger is not None and trial.reserved_bytes <= capacity_bytes:
            at_first = cost_of(choice.goal, choice.before, capacity_bytes)
            choice.kept = tried(changed, trial, at_first)
            choice.together.append(choice.kept)

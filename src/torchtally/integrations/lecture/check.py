"""Says whether an answer is right, and if not, which mistake it looks like."""

from pathlib import Path

from torchtally.errors import UsageError
from torchtally.integrations.lecture.exercise import Exercise, value
from torchtally.integrations.lecture.exercises import EXERCISES
from torchtally.ledger import Ledger, account
from torchtally.timing.targets import roofline
from torchtally.trace import Trace

FACTORS = (
    (2, "a factor of 2 away: is a product a multiply and an add, is the peak the dense one?"),
    (8, "a factor of 8 away: bits and bytes?"),
    (100, "a factor of 100 away: a share is from 0 to 1."),
    (1000, "a factor of 1000 away: look at the prefix of the unit."),
    (1.024, "2.4 % away: K is 1000, Ki is 1024."),
    (1.024**2, "4.9 % away: M is 1000^2, Mi is 1024^2."),
    (1.024**3, "7.4 % away: G is 1000^3, Gi is 1024^3."),
)
"""Mistakes that any exercise may have, by the ratio of the wrong answer to the right one."""


def check(number: str, answer: float | None, trace: str = "mine.tally") -> None:
    """Print whether the answer to an exercise is right, else a hint; nothing is stored or sent.

    `trace` is the file of the student's own script, for the exercises that ask about one. Raises
    UsageError where there is no such exercise or no such file.
    """
    print(verdict(exercise_of(number), answer, trace))


def exercise_of(number: str) -> Exercise:
    """The exercise of a number as "7.2"; UsageError if there is none."""
    if number not in EXERCISES:
        raise UsageError(
            f"There is no exercise {number!r}: pages have numbers from 1 to "
            f"{max(exercise.page for exercise in EXERCISES.values())}, each page three exercises. "
            'Write, say, "7.2".'
        )
    return EXERCISES[number]


def verdict(exercise: Exercise, answer: object, trace: str) -> str:
    """What `check` prints."""
    if answer is None or answer is ...:
        return (
            f"{exercise.number}: no answer yet. Write a number in place of None: {exercise.unit}."
        )
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        return f"{exercise.number}: expected a number ({exercise.unit}), got {answer!r}."
    ledger = ledger_of(trace) if exercise.is_own else None
    right = value(exercise.answer, ledger)
    if is_near(answer, right, exercise.tolerance):
        return f"{exercise.number}: right. {exercise.working}"
    for mistake in exercise.mistakes:
        if is_near(answer, value(mistake.answer, ledger), exercise.tolerance):
            return f"{exercise.number}: not yet. {mistake.hint}"
    return f"{exercise.number}: not yet: {distance(answer, right)}"


def distance(answer: float, right: float) -> str:
    """A hint from the ratio of the two alone."""
    for factor, hint in FACTORS:
        if any(is_near(answer, right * ratio, 0.002) for ratio in (factor, 1 / factor)):
            return hint
    return "too large." if answer > right else "too small."


def is_near(answer: float, right: float, tolerance: float) -> bool:
    return abs(answer - right) <= tolerance * abs(right)


def ledger_of(trace: str) -> Ledger:
    """The costs of the student's own script; UsageError if it was not run yet."""
    if not Path(trace).exists():
        raise UsageError(
            f"{trace} does not exist: run your script first, "
            f"`tally run YOUR_SCRIPT --gpu H100-SXM -o {trace}`."
        )
    facts = Trace.load(trace)
    return account(facts, roofline=roofline(facts.chip))

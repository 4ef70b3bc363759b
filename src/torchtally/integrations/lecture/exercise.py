"""A question with one number as its answer."""

from collections.abc import Callable
from dataclasses import dataclass

from torchtally.ledger import Ledger

Figure = float | Callable[[Ledger], float]
"""A number, or that of the student's own script."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A wrong answer that is often given, and what led to it."""

    answer: Figure
    hint: str


@dataclass(frozen=True, slots=True)
class Exercise:
    """One of three on a page of the lecture."""

    number: str
    """Of its page and its place there: "7.2"."""
    question: str
    unit: str
    """What the answer counts: "days", "a share from 0 to 1"."""
    answer: Figure
    working: str
    """How the answer comes about, in a sentence."""
    mistakes: tuple[Mistake, ...]

    @property
    def page(self) -> int:
        return int(self.number.partition(".")[0])

    @property
    def is_own(self) -> bool:
        """The answer is a figure of the student's own script."""
        return callable(self.answer)

    @property
    def tolerance(self) -> float:
        """The relative error that is still right: 1 %; 2 % of what a report rounds."""
        return 0.02 if self.is_own else 0.01


def value(figure: Figure, ledger: Ledger | None) -> float:
    """The number itself; a figure of a script needs its ledger."""
    if not callable(figure):
        return figure
    assert ledger is not None
    return figure(ledger)


def exercise(
    number: str,
    question: str,
    unit: str,
    answer: Figure,
    working: str,
    *mistakes: tuple[Figure, str],
) -> Exercise:
    """The exercise, written as a row: mistakes as pairs of wrong answer and hint."""
    return Exercise(
        number, question, unit, answer, working, tuple(Mistake(*mistake) for mistake in mistakes)
    )

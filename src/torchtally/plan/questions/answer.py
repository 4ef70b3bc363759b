"""What a question gets: the answer in one line, the numbers it rests on, and what it leaves out."""

from collections.abc import Iterator
from dataclasses import dataclass

from torchtally.plan.quantity import Quantity
from torchtally.table import Table

Part = str | Quantity
"""Of a sentence: prose, or a number that a renderer writes in its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one question. Immutable; `figures` carry the whole working."""

    question: str
    """Stable, for programs: "training-time"."""
    headline: tuple[Part, ...]
    """The answer in one sentence."""
    figures: tuple[Quantity, ...] = ()
    """The numbers that matter, the answer's own first."""
    tables: tuple[Table, ...] = ()
    assumptions: tuple[str, ...] = ()
    """What was taken for granted, and how to say otherwise. Empty ones say nothing."""
    unknown: tuple[str, ...] = ()
    """What is in no figure, and what would make it known."""
    next: tuple[str, ...] = ()
    """Commands that go on from here."""

    @property
    def working(self) -> tuple[Quantity, ...]:
        """Every step of the arithmetic behind the figures, each once, terms before results."""
        return tuple(self._steps())

    def _steps(self) -> Iterator[Quantity]:
        shown: set[Quantity] = set()
        in_headline = [quantity for quantity in self.headline if isinstance(quantity, Quantity)]
        for figure in (*in_headline, *self.figures):
            for step in figure.working():
                if step not in shown:
                    shown.add(step)
                    yield step
